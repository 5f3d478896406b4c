//! `docs/openapi.json` equals the description that the server returns.

use tollgate_server::control::api::describe;

#[test]
fn openapi_file_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    let given = describe::openapi_text();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, &given).expect("the file can be written");
        return;
    }
    assert!(kept == given, "docs/openapi.json is stale; run this test with BLESS=1 and read the difference");
}
