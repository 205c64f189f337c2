//! The `tidemill` command: one binary, one verb a task.

fn main() -> ! {
    tidemill::main()
}
