//! Alone in its process, which has one cryptography provider.

use ferrokube_client::Connection;
use rustls::crypto::CryptoProvider;

#[tokio::test]
async fn a_program_need_not_set_up_cryptography() {
    assert!(CryptoProvider::get_default().is_none());
    Connection::from_parts("https://localhost", "", "", "").await.unwrap();
    assert!(CryptoProvider::get_default().is_some());
}
