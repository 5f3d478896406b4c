//! Draws the decisions of every algorithm under the same traffic, on a manual clock.
//!
//! ```text
//! cargo run -p tollgate --example pictures
//! ```
//!
//! The pictures are in `docs/pictures`. A test fails if a picture differs from the output of this program.

mod drawing;
mod gallery;
mod traffic;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures");
    std::fs::create_dir_all(folder)?;
    for picture in gallery::all_pictures()? {
        std::fs::write(format!("{folder}/{}.svg", picture.name), picture.svg)?;
    }
    Ok(())
}
