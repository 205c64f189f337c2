//! The processor that models run on.

/// Its name, as the system tells it: on boards without a name for the processor, that of the board.
pub fn name() -> Option<String> {
    name_in(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

fn name_in(facts: &str) -> Option<String> {
    let value_of = |wanted: &str| {
        facts.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == wanted).then(|| value.trim().to_owned())
        })
    };
    value_of("model name").or_else(|| value_of("Model"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_and_boards_have_names() {
        let desk = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: A Processor\nmodel name\t: A Processor\n";
        assert_eq!(name_in(desk).as_deref(), Some("A Processor"));
        let board = "processor\t: 0\nCPU part\t: 0xd08\n\nModel\t\t: A Board Rev 1.4\n";
        assert_eq!(name_in(board).as_deref(), Some("A Board Rev 1.4"));
        assert_eq!(name_in("processor: 0"), None);
    }
}
