//! A message as a line of JSON.

/// Appends a message to `line` as one line, without the line break at its end. With `topic`, the name of a column and the
/// topic of the message, an object gets this field; it replaces one of that name in the message.
///
/// Line breaks become carriage returns: within JSON both are blanks between values and are invalid within texts, so that
/// nothing else is read than what was sent.
pub(crate) fn append(line: &mut Vec<u8>, payload: &[u8], topic: Option<(&str, &str)>) {
    let payload = payload.trim_ascii();
    let start = line.len();
    let object = topic.and_then(|topic| Some((payload.strip_suffix(b"}")?, topic)));
    match object {
        // Something else than an object, which the reader refuses. An empty line would be none.
        None if payload.is_empty() => line.extend(b"\"\""),
        None => line.extend(payload),
        Some((open, (column, topic))) => {
            line.extend(open);
            if !open.trim_ascii_end().ends_with(b"{") {
                line.push(b',');
            }
            quote(line, column);
            line.push(b':');
            quote(line, topic);
            line.push(b'}');
        }
    }
    line[start..].iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b'\r');
}

/// Appends a text as JSON.
fn quote(line: &mut Vec<u8>, text: &str) {
    line.push(b'"');
    for character in text.chars() {
        match character {
            '"' | '\\' => line.extend([b'\\', character as u8]),
            character if character < ' ' => line.extend(format!("\\u{:04x}", character as u32).bytes()),
            character => line.extend(character.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    line.push(b'"');
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn line(payload: &str, topic: Option<(&str, &str)>) -> String {
        let mut line = Vec::new();
        append(&mut line, payload.as_bytes(), topic);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn a_message_is_one_line() {
        assert_eq!(line("{\"a\":\n 1}\n", None), "{\"a\":\r 1}");
        assert_eq!(line(" \n", None), "\"\"");
        assert_eq!(line("21.5", Some(("t", "a/b"))), "21.5");
        assert_eq!(line("{\"a\":\"x\ny\"}", None), "{\"a\":\"x\ry\"}", "invalid as before");
    }

    #[test]
    fn the_topic_is_a_field() {
        assert_eq!(line("{}", Some(("t", "a/b"))), "{\"t\":\"a/b\"}");
        assert_eq!(
            line("{\"a\": 1 }", Some(("t", "a/\"b\\\u{1}é"))),
            "{\"a\": 1 ,\"t\":\"a/\\\"b\\\\\\u0001é\"}"
        );
        let value: serde_json::Value = serde_json::from_str(&line("{\"t\": 1}", Some(("t", "a")))).unwrap();
        assert_eq!(value["t"], "a", "the topic counts");
    }
}
