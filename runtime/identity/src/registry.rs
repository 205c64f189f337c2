//! Where a register lies that is not in the folder of its authority: several controllers share it then.

/// Keeps one text of bytes for the controller that leads.
pub trait Registry: Send {
    /// Names it in messages.
    fn place(&self) -> String;
    /// Returns the content that was kept last; none: nothing was yet.
    ///
    /// # Errors
    /// It cannot be read, in words.
    fn read(&mut self) -> Result<Option<Vec<u8>>, String>;
    /// Keeps this instead, all or nothing; it is durable on return.
    ///
    /// # Errors
    /// It cannot be kept, in words: another controller leads, for instance. Then it does not count.
    fn replace(&mut self, bytes: &[u8]) -> Result<(), String>;
}
