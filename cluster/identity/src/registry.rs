//! The place of a register outside the folder of its authority, which several controllers share.

/// Keeps one text of bytes for the controller that leads.
pub trait Registry: Send {
    /// Names it in messages.
    fn place(&self) -> String;
    /// Returns the content that was kept last; none: nothing was yet.
    ///
    /// # Errors
    /// It cannot be read, in words.
    fn read(&mut self) -> Result<Option<Vec<u8>>, String>;
    /// Replaces the content, all or nothing; it is durable on return.
    ///
    /// # Errors
    /// It cannot be kept, in words: another controller leads, for instance. Then it does not count.
    fn replace(&mut self, bytes: &[u8]) -> Result<(), String>;
}
