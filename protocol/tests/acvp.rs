//! NIST's vectors (ACVP) for ML-DSA-65 and for the parts of ML-KEM-768 that our wrapper does not show; what it does show is checked in
//! `session/kem/tests.rs`. The files say where they come from and which part of the originals they are.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]
use ml_dsa::{EncodedVerifyingKey, ExpandedSigningKey, KeyExport as _, Keypair as _, MlDsa65, SigningKey};
use ml_kem::{DecapsulationKey768, ExpandedDecapsulationKey, MlKem768, kem::Decapsulate as _};
use octomesh_protocol::trust::NodeIdentity;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const ML_DSA: &str = include_str!("data/acvp-ml-dsa-65.json");
const ML_KEM: &str = include_str!("data/acvp-ml-kem-768.json");

/// The cases of one list of a file, at least `least` of them.
fn cases(file: &str, list: &str, least: usize) -> Vec<Value> {
    let mut file: Value = serde_json::from_str(file).unwrap();
    let Value::Array(cases) = file[list].take() else { panic!("no list {list}") };
    assert!(cases.len() >= least, "{list} has {}", cases.len());
    cases
}

fn bytes(case: &Value, field: &str) -> Vec<u8> {
    data_encoding::HEXLOWER.decode(case[field].as_str().unwrap().as_bytes()).unwrap()
}

fn seed(case: &Value) -> [u8; 32] {
    bytes(case, "seed").try_into().unwrap()
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

#[expect(deprecated, reason = "NIST's cases give the expanded key; ours are seeds")]
fn signing_key(case: &Value) -> ExpandedSigningKey<MlDsa65> {
    ExpandedSigningKey::from_expanded(&bytes(case, "sk").as_slice().try_into().unwrap())
}

#[expect(deprecated, reason = "NIST's cases give the expanded key; ours are seeds")]
fn decapsulation_key(case: &Value) -> Option<DecapsulationKey768> {
    let key: ExpandedDecapsulationKey<MlKem768> = bytes(case, "dk").as_slice().try_into().unwrap();
    ml_kem::ExpandedKeyEncoding::from_expanded_bytes(&key).ok()
}

#[test]
fn ml_dsa_key_generation() {
    for case in cases(ML_DSA, "key_gen", 4) {
        let key = SigningKey::<MlDsa65>::from_seed(&seed(&case).into());
        assert_eq!(digest(&key.verifying_key().to_bytes()), bytes(&case, "pk_sha256"), "{}", case["tc"]);
        #[expect(deprecated, reason = "NIST's answer is the expanded key")]
        let expanded = key.expanded_key().to_expanded();
        assert_eq!(digest(&expanded), bytes(&case, "sk_sha256"), "{}", case["tc"]);
        // The same through the identity that a node has: its second seed is the ML-DSA key's.
        let mut both = [7; 64];
        both[32..].copy_from_slice(&seed(&case));
        let identity = NodeIdentity::from_seed(both);
        assert_eq!(digest(identity.public().ml_dsa().as_bytes()), bytes(&case, "pk_sha256"));
    }
}

#[test]
fn ml_dsa_deterministic_signatures() {
    let mut without_context = 0;
    for case in cases(ML_DSA, "sig_gen", 3) {
        let (message, context) = (bytes(&case, "message"), bytes(&case, "context"));
        without_context += usize::from(context.is_empty());
        let signature = signing_key(&case).sign_deterministic(&message, &context).unwrap();
        assert_eq!(digest(&signature.encode()), bytes(&case, "signature_sha256"), "{}", case["tc"]);
    }
    assert!(without_context > 0, "ours have an empty context");
    for case in cases(ML_DSA, "sig_gen_internal", 1) {
        let message = bytes(&case, "message");
        let signature = signing_key(&case).sign_internal(&[&message], &[0; 32].into());
        assert_eq!(digest(&signature.encode()), bytes(&case, "signature_sha256"), "{}", case["tc"]);
    }
}

#[test]
fn ml_dsa_verification() {
    let mut seen = [0; 2];
    for case in cases(ML_DSA, "sig_ver", 7) {
        let key = EncodedVerifyingKey::<MlDsa65>::try_from(&bytes(&case, "pk")[..]).unwrap();
        let key = ml_dsa::VerifyingKey::<MlDsa65>::decode(&key);
        let (message, context) = (bytes(&case, "message"), bytes(&case, "context"));
        let good = ml_dsa::Signature::<MlDsa65>::try_from(&bytes(&case, "signature")[..])
            .is_ok_and(|signature| key.verify_with_context(&message, &context, &signature));
        assert_eq!(good, case["passed"].as_bool().unwrap(), "{}", case["tc"]);
        seen[usize::from(good)] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

/// Also with changed ciphertexts, whose answer is the pseudo-random secret of the implicit rejection.
#[test]
fn ml_kem_decapsulation() {
    let mut rejected = 0;
    for case in cases(ML_KEM, "decapsulation", 4) {
        let key = decapsulation_key(&case).unwrap();
        let ciphertext: [u8; 1088] = bytes(&case, "c").try_into().unwrap();
        assert_eq!(key.decapsulate(&ciphertext.into())[..], bytes(&case, "k"), "{}", case["tc"]);
        rejected += usize::from(case["reason"] == "modified ciphertext");
    }
    assert_eq!(rejected, 2);
}

#[test]
fn ml_kem_decapsulation_key_check() {
    for case in cases(ML_KEM, "decapsulation_key_check", 2) {
        let passed = decapsulation_key(&case).is_some();
        assert_eq!(passed, case["passed"].as_bool().unwrap(), "{}", case["tc"]);
    }
}
