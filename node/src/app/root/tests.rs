use std::os::unix::fs::PermissionsExt;

use octomesh_protocol::{
    id::NodeName,
    session::secret::MeshSecret,
    trust::{CertificateRequest, Grants, Role},
};
use tokio::time::{Duration, Instant};
use zeroize::Zeroizing;

use super::*;

fn phrase(text: &str) -> Passphrase {
    Passphrase::new(Zeroizing::new(text.to_owned()))
}

/// A first node whose root has this seed, in the clear or sealed as cheaply as a file may be.
fn first_node(folder: &Path, seed: u8, sealed: Option<&str>) -> PathBuf {
    let path = folder.join(format!("home-{seed}"));
    let home = Home::new(&path);
    let node = home.pending_node(&Zeroizing::new([9; 64])).unwrap();
    let root = MeshRoot::from_seed([seed; 64]);
    let request = CertificateRequest {
        keys: node.public().clone(),
        name: NodeName::parse("pi").unwrap(),
        role: Role::Admin,
        grants: Grants::default(),
        serial: 1,
        now: 1_000_000,
        lifetime_s: 1000,
    };
    let chain = root.issue(request).unwrap();
    let file = match sealed {
        None => RootFile::Clear(root),
        Some(text) => {
            RootFile::Sealed(SealedRoot::seal(&root, &phrase(text), Cost::LEAST, &[5; RANDOM_BYTES]).unwrap())
        }
    };
    home.adopt(&chain, &MeshSecret::from_bytes([3; 32]), Some(&file), &[]).unwrap();
    path
}

fn export_plain(home: &Path, file: &Path) -> Result<RootReply, EntryError> {
    export(&ExportArgs { home: home.to_owned(), file: file.to_owned(), open_with: None, seal_with: None })
}

fn remove_plain(home: &Path, copy: &Path) -> Result<RootReply, EntryError> {
    remove(&RemoveArgs { home: home.to_owned(), copy: copy.to_owned(), open_with: None })
}

fn import_plain(home: &Path, file: &Path) -> Result<RootReply, EntryError> {
    import(&ImportArgs { home: home.to_owned(), file: file.to_owned(), open_with: None })
}

#[test]
fn a_root_goes_offline_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let (home, copy) = (first_node(folder.path(), 1, None), folder.path().join("copy"));
    assert_eq!(status(&home).unwrap().place, RootPlace::Here);
    export_plain(&home, &copy).unwrap();
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(export_plain(&home, &copy).unwrap_err().code, "exists", "never overwritten");
    remove_plain(&home, &copy).unwrap();
    assert_eq!(status(&home).unwrap().place, RootPlace::Away);
    assert!(!Home::new(&home).root_key().exists());
    assert_eq!(remove_plain(&home, &copy).unwrap_err().code, "root_away");
    assert_eq!(export_plain(&home, &folder.path().join("other")).unwrap_err().code, "root_away");
    import_plain(&home, &copy).unwrap();
    assert_eq!(status(&home).unwrap().place, RootPlace::Here);
    assert_eq!(import_plain(&home, &copy).unwrap_err().code, "exists");
    assert!(Home::new(&home).identity().unwrap().is_some());
}

/// What is erased must have a copy that opens.
#[test]
fn nothing_is_erased_without_a_good_copy() {
    let folder = tempfile::tempdir().unwrap();
    let home = first_node(folder.path(), 1, None);
    let here = Home::new(&home).root_key();
    let still = || assert_eq!(status(&home).unwrap().place, RootPlace::Here);

    assert_eq!(remove_plain(&home, &folder.path().join("none")).unwrap_err().code, "io");
    still();
    assert_eq!(remove_plain(&home, &here).unwrap_err().code, "same_file");
    still();
    let link = folder.path().join("link");
    fs::hard_link(&here, &link).unwrap();
    assert_eq!(remove_plain(&home, &link).unwrap_err().code, "same_file");
    still();
    let other = folder.path().join("other");
    export_plain(&first_node(folder.path(), 2, None), &other).unwrap();
    assert_eq!(remove_plain(&home, &other).unwrap_err().code, "other_mesh");
    still();
    let half = folder.path().join("half");
    fs::write(&half, &fs::read(&here).unwrap()[..100]).unwrap();
    assert_eq!(remove_plain(&home, &half).unwrap_err().code, "not_a_root");
    still();
    // Nor does another mesh's root come in.
    let copy = folder.path().join("copy");
    export_plain(&home, &copy).unwrap();
    remove_plain(&home, &copy).unwrap();
    assert_eq!(import_plain(&home, &other).unwrap_err().code, "other_mesh");
    assert_eq!(status(&home).unwrap().place, RootPlace::Away);
}

#[test]
fn a_sealed_root_needs_its_passphrase_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let home = first_node(folder.path(), 1, Some("correct horse"));
    let copy = folder.path().join("copy");
    assert_eq!(status(&home).unwrap().place, RootPlace::Locked);
    assert_eq!(export_plain(&home, &copy).unwrap_err().code, "passphrase");
    let open = |text: &str| {
        let (open_with, seal_with) = (Some(phrase(text)), None);
        export(&ExportArgs { home: home.clone(), file: copy.clone(), open_with, seal_with })
    };
    assert_eq!(open("wrong horse!").unwrap_err().code, "passphrase");
    assert!(!copy.exists());
    open("correct horse").unwrap();
    assert!(is_sealed(&copy).unwrap());
    assert_eq!(remove_plain(&home, &copy).unwrap_err().code, "passphrase");
    let with = |text: &str| Some(phrase(text));
    let args = |text: &str| RemoveArgs { home: home.clone(), copy: copy.clone(), open_with: with(text) };
    assert_eq!(remove(&args("wrong horse!")).unwrap_err().code, "passphrase");
    remove(&args("correct horse")).unwrap();
    let args = |text: &str| ImportArgs { home: home.clone(), file: copy.clone(), open_with: with(text) };
    assert_eq!(import(&args("wrong horse!")).unwrap_err().code, "passphrase");
    assert_eq!(import(&args("correct horse")).unwrap().place, RootPlace::Locked);
}

#[tokio::test(start_paused = true)]
async fn a_running_node_uses_the_root_only_while_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let path = first_node(folder.path(), 1, Some("correct horse"));
    let (home, mesh) = (Home::new(&path), MeshRoot::from_seed([1; 64]).mesh_id());
    let keeper = RootKeeper::new(home.clone(), mesh);
    let get = || keeper.root().map(|root| root.mesh_id());
    assert_eq!(get(), Err(RootAbsent::Locked));

    let until = Instant::now() + Duration::from_secs(60);
    keeper.unlock(MeshRoot::from_seed([2; 64]), until);
    assert_eq!(get(), Err(RootAbsent::Locked), "another mesh's");
    let opened = open_in_home(&home, &phrase("correct horse")).unwrap();
    keeper.unlock(opened, until);
    assert_eq!((get(), keeper.place()), (Ok(mesh), RootPlace::Unlocked));
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(get(), Err(RootAbsent::Locked));
    assert_eq!(keeper.place(), RootPlace::Locked);

    // Taken away while it is open.
    keeper.unlock(open_in_home(&home, &phrase("correct horse")).unwrap(), until + Duration::from_secs(60));
    let copy = folder.path().join("copy");
    fs::copy(home.root_key(), &copy).unwrap();
    remove(&RemoveArgs { home: path.clone(), copy: copy.clone(), open_with: Some(phrase("correct horse")) })
        .unwrap();
    assert_eq!(get(), Err(RootAbsent::Away));
    import(&ImportArgs { home: path, file: copy, open_with: Some(phrase("correct horse")) }).unwrap();
    assert_eq!(get(), Err(RootAbsent::Locked), "it was forgotten");
}
