//! Messages over connections between workers and coordinators.

fn of(name: &str, samples: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Vec<Vec<u8>> {
    samples.into_iter().filter(|(of, _)| *of == name).map(|(_, bytes)| bytes).collect()
}

fn of_link(name: &str) -> Vec<Vec<u8>> {
    of(name, tidemill_link::remote::fuzz_entry::samples().expect("the system gives sockets"))
}

pub(super) fn frames() -> Vec<Vec<u8>> {
    of_link("frames")
}

pub(super) fn control_words() -> Vec<Vec<u8>> {
    of_link("control_words")
}

pub(super) fn control_messages() -> Vec<Vec<u8>> {
    of_link("control_messages")
}

pub(super) fn greetings() -> Vec<Vec<u8>> {
    of_link("greeting")
}

pub(super) fn notices() -> Vec<Vec<u8>> {
    of("notice", tidemill_engine::fuzz_entry::samples())
}

pub(super) fn orders() -> Vec<Vec<u8>> {
    of("order", tidemill_engine::fuzz_entry::samples())
}

pub(super) fn calls() -> Vec<Vec<u8>> {
    of("calls", tidemill_engine::fuzz_entry::samples())
}

pub(super) fn samples() -> Vec<Vec<u8>> {
    of("sample", tidemill_engine::fuzz_entry::samples())
}
