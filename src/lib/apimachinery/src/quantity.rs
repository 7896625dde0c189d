//! Resource quantities: `100m`, `1Gi`, `1e3`, canonical as upstream writes them.

/// A parsed quantity: exact decimal arithmetic in 10^-9 units within i128.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {}

impl Quantity {
    /// Parses; rounds up below 10^-9 as upstream does.
    ///
    /// # Errors
    /// The text that is no quantity.
    pub fn parse(_text: &str) -> Result<Self, String> {
        unimplemented!("apimachinery owner")
    }

    /// The canonical form.
    pub fn canonical(&self) -> String {
        unimplemented!("apimachinery owner")
    }
}
