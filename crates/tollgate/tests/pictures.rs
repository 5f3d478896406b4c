//! Checks that the committed pictures equal the output of the example `pictures`.

#[path = "../examples/pictures/drawing.rs"]
mod drawing;
#[path = "../examples/pictures/gallery.rs"]
mod gallery;
#[path = "../examples/pictures/traffic.rs"]
mod traffic;

#[test]
fn every_picture_is_up_to_date_and_small() {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures"));
    let pictures = gallery::all_pictures().expect("valid limits");
    for picture in &pictures {
        let kept = std::fs::read_to_string(folder.join(picture.name).with_extension("svg")).unwrap_or_default();
        assert_eq!(kept, picture.svg, "{}: run `cargo run -p tollgate --example pictures`", picture.name);
        assert!(kept.len() < 20_000, "{} has {} bytes", picture.name, kept.len());
    }
    let files = std::fs::read_dir(folder).expect("the pictures are part of the repository").flatten();
    // `sharing.svg` is drawn by a test of the server, from the decisions of several servers.
    let drawings =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|extension| extension == "svg"));
    let drawings = drawings.filter(|path| !path.ends_with("sharing.svg")).count();
    assert_eq!(drawings, pictures.len(), "a picture of an algorithm that no longer exists");
}
