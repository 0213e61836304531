use std::os::unix::fs::PermissionsExt;

use octomesh_protocol::trust::Role;

use super::*;
use crate::trust::fixtures::{NOW, chain, id, identity, out, root, rotation, secret};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().to_owned());
    (folder, store)
}

#[test]
fn revocations_come_back_and_damage_costs_only_itself() {
    let (folder, store) = store();
    let mesh = root().mesh_id();
    assert!(store.revocations(mesh).unwrap().is_empty());
    let admin = chain(2, Role::Admin);
    let weak = SignedRevocation::by_admin(&identity(2), &admin, id(5), NOW, "").unwrap();
    store.add_revocation(&weak, None).unwrap();
    store.add_revocation(&out(5), Some(&weak)).unwrap();
    store.add_revocation(&out(6), None).unwrap();
    let held = store.revocations(mesh).unwrap();
    assert_eq!(held.len(), 2);
    assert_eq!(held.of(id(5)).unwrap().reason, "lost");
    let files = folder.path().join(REVOCATIONS);
    assert_eq!(mode(&files), 0o700);
    assert_eq!(fs::read_dir(&files).unwrap().count(), 2, "the one that was replaced is gone");
    let path = files.join(out(5).id().to_string());
    assert_eq!(mode(&path), 0o600);
    let mut bytes = fs::read(&path).unwrap();
    bytes[100] ^= 1;
    fs::write(&path, bytes).unwrap();
    fs::write(files.join("junk"), [0xff; 100]).unwrap();
    let held = store.revocations(mesh).unwrap();
    assert!(held.is_revoked(id(6)) && !held.is_revoked(id(5)));
    store.add_revocation(&out(5), None).unwrap();
    assert_eq!(store.revocations(mesh).unwrap().len(), 2, "learnt again, it takes its place");
}

/// What an admin said before it was revoked itself is held, in whichever order the files are read.
#[test]
fn what_a_revoked_admin_said_before_survives_a_restart() {
    let (_folder, store) = store();
    let admin = chain(2, Role::Admin);
    let earlier = SignedRevocation::by_admin(&identity(2), &admin, id(5), NOW, "").unwrap();
    store.add_revocation(&earlier, None).unwrap();
    store.add_revocation(&out(2), None).unwrap();
    let held = store.revocations(root().mesh_id()).unwrap();
    assert!(held.is_revoked(id(2)) && held.is_revoked(id(5)));
}

#[test]
fn secrets_come_back() {
    let (folder, store) = store();
    let mesh = root().mesh_id();
    assert_eq!(store.secrets(mesh, secret(7)).unwrap(), Secrets::first(secret(7)));
    let signed = rotation(1, 8);
    let secrets = Secrets {
        current: secret(8),
        stamp: signed.stamp(),
        rotation: Some(Arc::new(signed)),
        previous: vec![
            Previous { secret: secret(7), until: NOW },
            Previous { secret: secret(6), until: NOW - 5 },
        ],
    };
    store.write_secrets(&secrets).unwrap();
    assert_eq!(store.secrets(mesh, secret(7)).unwrap(), secrets);
    let plain = fs::read_to_string(folder.path().join(MESH_SECRET)).unwrap();
    assert_eq!(plain.trim(), HEXLOWER.encode(&[8; 32]), "the old secret does not stay behind");
    assert_eq!(mode(&folder.path().join(SECRETS)), 0o600);
    store.write_secrets(&Secrets { previous: Vec::new(), ..secrets }).unwrap();
    let text = fs::read_to_string(folder.path().join(SECRETS)).unwrap();
    assert!(!text.contains(&HEXLOWER.encode(&[7; 32])), "nor in this one");
}

#[test]
fn damaged_secrets_are_named_with_what_to_do() {
    let (folder, store) = store();
    let path = folder.path().join(SECRETS);
    let good = rotation(1, 8);
    let foreign = octomesh_protocol::trust::MeshRoot::from_seed([9; 64]);
    let foreign = SignedRotation::by_root(&foreign, 1, NOW, secret(8)).unwrap();
    let hex = |r: &SignedRotation| HEXLOWER.encode(&r.to_bytes().unwrap());
    for text in [
        "{".to_owned(),
        r#"{"rotation": "zz", "previous": []}"#.to_owned(),
        r#"{"rotation": "00", "previous": []}"#.to_owned(),
        format!(r#"{{"rotation": "{}", "previous": []}}"#, hex(&foreign)),
        format!(r#"{{"rotation": "{}", "previous": [{{"secret": "00", "until": 1}}]}}"#, hex(&good)),
    ] {
        fs::write(&path, text).unwrap();
        let error = store.secrets(root().mesh_id(), secret(7)).unwrap_err().to_string();
        assert!(error.contains("secrets.json is damaged") && error.contains("backup"), "{error}");
    }
}

#[test]
fn what_came_with_a_certificate_is_kept_if_it_holds() {
    let (folder, store) = store();
    let mesh = root().mesh_id();
    write_joined(folder.path(), mesh, &[out(5).to_bytes().unwrap(), vec![1, 2, 3]]).unwrap();
    assert!(store.revocations(mesh).unwrap().is_revoked(id(5)));
    assert_eq!(store.revocations(mesh).unwrap().len(), 1);
}

#[test]
fn only_files_with_the_name_of_a_revocation_are_read() {
    let (folder, store) = store();
    let mesh = root().mesh_id();
    store.add_revocation(&out(5), None).unwrap();
    let files = folder.path().join(REVOCATIONS);
    for junk in 0..2 * limits::REVOCATIONS {
        fs::write(files.join(format!("junk-{junk}")), "").unwrap();
    }
    assert!(store.revocations(mesh).unwrap().is_revoked(id(5)), "junk takes no place");
    assert_eq!(store.examine(mesh).unwrap(), [] as [PathBuf; 0], "and is no damage");
    // A pipe would keep the start waiting for ever.
    let pipe = files.join(out(6).id().to_string());
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert_eq!(store.revocations(mesh).unwrap().len(), 1);
    assert_eq!(store.examine(mesh).unwrap(), [pipe]);
    fs::write(folder.path().join(SECRETS), "{").unwrap();
    assert!(store.examine(mesh).is_err());
}
