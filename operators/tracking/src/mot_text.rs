//! The text format of MOTChallenge (Leal-Taixé et al. 2015; Milan et al. 2016): one line per box,
//!
//! ```text
//! frame,identity,left,top,width,height,score,class,visibility
//! ```
//!
//! with frames counted from 1 and pixels as in a [`BoundingBox`]. In ground truth, a score of 0 means that the box is
//! not counted; with any other, including -1, it is ([`Line::counts`]). In results of trackers the last columns are -1
//! or left out; detections have the identity -1. Blanks around numbers, whole numbers with a point (`7.0`), empty
//! fields at the end of a line, empty lines and a byte order mark are accepted.
use crate::bounding_box::BoundingBox;
use std::collections::HashMap;
use std::fmt::Write;

/// One line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// From 1.
    pub frame: u64,
    /// The object; none for detections.
    pub identity: Option<u64>,
    /// Its box.
    pub area: BoundingBox,
    /// Confidence of the writer.
    pub score: f64,
    /// Number of the class, where there is one.
    pub class: Option<u32>,
    /// Visible share of the box, 0 to 1, where known.
    pub visibility: Option<f64>,
}

impl Line {
    /// Whether a box of the ground truth counts: any score except 0.
    pub fn counts(&self) -> bool {
        self.score != 0.0
    }
}

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct MotTextError {
    /// From 1.
    pub line: usize,
    /// First invalid character, from 1.
    pub column: usize,
    /// The finding and the expectation.
    pub message: String,
}

/// Parses a file; returns each line with its number, from 1. Skips empty lines.
///
/// # Errors
/// The first invalid line, with the place in it.
pub fn read(text: &str) -> Result<Vec<(usize, Line)>, MotTextError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| match read_line(line) {
            Ok(read) => Ok((index + 1, read)),
            Err((column, message)) => Err(MotTextError { line: index + 1, column, message }),
        })
        .collect()
}

/// Parses the ground truth of one camera; returns each line with its number, from 1.
///
/// # Errors
/// As [`read`]; also where a counted box has no identity, or one identity has two of them in a frame: an object is in
/// one place, so one of the two could never be found.
pub fn read_truth(text: &str) -> Result<Vec<(usize, Line)>, MotTextError> {
    let lines = read(text)?;
    let mut known = HashMap::new();
    for (number, line) in lines.iter().filter(|(_, line)| line.counts()) {
        let wrong = |message| Err(MotTextError { line: *number, column: 1, message });
        let Some(identity) = line.identity else {
            return wrong("the identity is -1, as in detections, expected that of an object".to_owned());
        };
        if let Some(first) = known.insert((line.frame, identity), *number) {
            return wrong(format!(
                "the object {identity} is in frame {} a second time, after line {first}; boxes with the score 0 do not count",
                line.frame
            ));
        }
    }
    Ok(lines)
}

/// Names of the fields, in order.
const FIELDS: [&str; 9] =
    ["frame", "identity", "left", "top", "width", "height", "score", "class", "visibility"];

fn read_line(line: &str) -> Result<Line, (usize, String)> {
    let mut fields = Vec::new();
    let mut start = 0;
    for field in line.split(',') {
        fields.push((line[..start].chars().count() + 1, field.trim()));
        start += field.len() + 1;
    }
    while fields.last().is_some_and(|(_, field)| field.is_empty()) {
        fields.pop();
    }
    if !(6..=10).contains(&fields.len()) {
        let hint = if fields.len() == 1 { ", with commas between them" } else { "" };
        let message =
            format!("found {} fields, expected 6 to 10{hint}: {},...", fields.len(), FIELDS[..6].join(","));
        return Err((1, message));
    }
    let number = |index: usize| -> Result<f64, (usize, String)> {
        let (column, field) = fields[index];
        match field.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(value),
            _ => Err((column, format!("`{field}` is not a number, expected the {}", FIELDS[index]))),
        }
    };
    let whole = |index: usize, least: f64| -> Result<u64, (usize, String)> {
        let value = number(index)?;
        if value.fract() == 0.0 && value >= least && value < 9e15 {
            return Ok(value as u64);
        }
        let (column, field) = fields[index];
        Err((
            column,
            format!("`{field}` is not a {}, expected a whole number of {least} or more", FIELDS[index]),
        ))
    };
    let optional = |index: usize| -> Result<Option<f64>, (usize, String)> {
        if index >= fields.len() { Ok(None) } else { Ok(Some(number(index)?).filter(|value| *value >= 0.0)) }
    };
    let identity = if number(1)? == -1.0 { None } else { Some(whole(1, 0.0)?) };
    let area = BoundingBox { left: number(2)?, top: number(3)?, width: number(4)?, height: number(5)? };
    if let Some(index) = [4, 5].into_iter().find(|index| number(*index).is_ok_and(|value| value < 0.0)) {
        let (column, field) = fields[index];
        return Err((column, format!("`{field}` is negative, expected the {} in pixels", FIELDS[index])));
    }
    // Results have ten fields; the last three are a place in the world.
    let is_result = fields.len() == 10;
    let score = if fields.len() > 6 { number(6)? } else { 1.0 };
    let class = match optional(7)?.filter(|_| !is_result) {
        Some(_) => Some(
            u32::try_from(whole(7, 0.0)?)
                .map_err(|_| (fields[7].0, format!("`{}` is not a class", fields[7].1)))?,
        ),
        None => None,
    };
    let visibility = optional(8)?.filter(|_| !is_result);
    Ok(Line { frame: whole(0, 1.0)?, identity, area, score, class, visibility })
}

/// Formats lines in the order given: those with class or visibility as ground truth, the others as results.
pub fn write(lines: &[Line]) -> String {
    let mut text = String::new();
    for line in lines {
        let BoundingBox { left, top, width, height } = line.area;
        let identity = line.identity.map_or("-1".to_owned(), |identity| identity.to_string());
        let rest = match (line.class, line.visibility) {
            (None, None) => "-1,-1,-1".to_owned(),
            (class, visibility) => {
                let class = class.map_or(-1, i64::from);
                visibility.map_or_else(|| format!("{class},-1"), |visibility| format!("{class},{visibility}"))
            }
        };
        // Writing to a String never fails.
        let _ =
            writeln!(text, "{},{identity},{left},{top},{width},{height},{},{rest}", line.frame, line.score);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn truth_results_and_detections_are_read() {
        let lines =
            read("1,3,10,20,30,40,1,2,0.5\n\n2, -1, 1.5, 1, 3, 4, 0.25, -1, -1, -1\n3,1,1,1,1,1\n").unwrap();
        assert_eq!(lines[0].1.area, BoundingBox { left: 10.0, top: 20.0, width: 30.0, height: 40.0 });
        assert_eq!((lines[0].1.class, lines[0].1.visibility), (Some(2), Some(0.5)));
        assert_eq!((lines[1].1.identity, lines[1].1.score, lines[1].1.class), (None, 0.25, None));
        assert_eq!((lines[2].1.frame, lines[2].1.score), (3, 1.0));
        assert_eq!(lines.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 3, 4]);
    }

    /// Variants by other programs: all of these are the same box.
    #[test]
    fn kin_of_the_format_are_read() {
        let plain = read("4,7,1,2,3,4,1,1,0.5").unwrap();
        for text in [
            "\u{feff}4,7,1,2,3,4,1,1,0.5\r\n",
            "4.0, 7.0, 1.000, 2e0, 3.0, 4.0, 1.0, 1.0, 0.5\n\n",
            "4,7,1,2,3,4,1,1,0.5,\n",
            " 4\t,7 ,1,2,3,4,1,1,0.5,,\n",
        ] {
            assert_eq!(read(text).unwrap(), plain, "{text:?}");
        }
        // Empty last columns count as left out.
        assert_eq!(read("4,7,1,2,3,4,,,").unwrap(), read("4,7,1,2,3,4").unwrap());
    }

    #[test]
    fn only_the_score_0_does_not_count() {
        let lines = read_truth(
            "1,1,0,0,9,9,-1,-1,-1,-1\n1,2,0,0,9,9,0,1,1\n1,2,0,0,9,9,0.0,1,1\n1,3,0,0,9,9,0.4\n1,4,0,0,9,9\n1,-1,0,0,9,9,0\n1,2,5,5,9,9,1",
        );
        let counted: Vec<_> = lines.unwrap().iter().map(|(_, line)| line.counts()).collect();
        assert_eq!(counted, [true, false, false, true, true, false, true]);
    }

    #[test]
    fn an_object_is_in_one_place_and_has_an_identity() {
        let twice =
            read_truth("1,3,0,0,9,9,1\n\n2,3,0,0,9,9,1\n2,4,0,0,9,9,1\n2,3.0,50,0,9,9,-1\n").unwrap_err();
        assert_eq!(twice.line, 5);
        assert!(twice.message.contains("object 3 is in frame 2 a second time, after line 3"), "{twice}");
        let detections = read_truth("1,-1,0,0,9,9,0.9\n").unwrap_err();
        assert!(detections.line == 1 && detections.message.contains("as in detections"), "{detections}");
    }

    #[test]
    fn mistakes_have_a_place() {
        for (text, place, part) in [
            ("1,1,1,1,1,1\n1,x,1,1,1,1", (2, 3), "`x` is not a number, expected the identity"),
            ("0,1,1,1,1,1", (1, 1), "`0` is not a frame"),
            ("1,1,1,1, -3,1", (1, 9), "`-3` is negative, expected the width"),
            ("1,1,1", (1, 1), "found 3 fields"),
            ("1,1,1,1,1,inf", (1, 11), "`inf` is not a number"),
            ("1,1.5,1,1,1,1", (1, 3), "whole number"),
            ("1 1 1 1 1 1", (1, 1), "found 1 fields, expected 6 to 10, with commas between them"),
            ("1,1,1,1,1,1,,2", (1, 13), "`` is not a number, expected the score"),
            ("1,1,1,1,1,1,nan", (1, 13), "`nan` is not a number, expected the score"),
            ("1,1,1,1,1,1,1,1,1,1,1", (1, 1), "found 11 fields"),
            ("frame,id,x,y,w,h", (1, 7), "`id` is not a number, expected the identity"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!((error.line, error.column), place, "{error}");
            assert!(error.message.contains(part), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            frame in 1u64..1 << 40, identity in proptest::option::of(0u64..1 << 50),
            sides in proptest::array::uniform4(0u32..1 << 20), score in 0.0f64..1.0,
            truth in proptest::option::of((0u32..100, 0u32..64)),
        ) {
            let [left, top, width, height] = sides.map(|side| f64::from(side) / 64.0);
            let line = Line {
                frame, identity, area: BoundingBox { left, top, width, height }, score,
                class: truth.map(|(class, _)| class),
                visibility: truth.map(|(_, visibility)| f64::from(visibility) / 64.0),
            };
            prop_assert_eq!(read(&write(&[line, line])).unwrap(), vec![(1, line), (2, line)]);
        }

        #[test]
        fn nothing_makes_it_panic(text in "[-0-9.,xe\n ü]{0,60}") {
            let _ = read(&text);
        }
    }
}
