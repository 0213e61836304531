//! NIST's vectors (ACVP) for ML-KEM-768, through what the handshake and the rekey use. `tests/acvp.rs` has the rest of the file.
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use shake::{
    Shake256,
    digest::{ExtendableOutput as _, Update as _, XofReader as _},
};

use super::*;

fn cases(list: &str, least: usize) -> Vec<Value> {
    let mut file: Value =
        serde_json::from_str(include_str!("../../../tests/data/acvp-ml-kem-768.json")).unwrap();
    let Value::Array(cases) = file[list].take() else { panic!("no list {list}") };
    assert!(cases.len() >= least, "{list} has {}", cases.len());
    cases
}

fn bytes(case: &Value, field: &str) -> Vec<u8> {
    data_encoding::HEXLOWER.decode(case[field].as_str().unwrap().as_bytes()).unwrap()
}

/// FIPS 203's `d ‖ z`: the 64 bytes that a seed is.
fn seed(case: &Value) -> [u8; 64] {
    [bytes(case, "d"), bytes(case, "z")].concat().try_into().unwrap()
}

#[test]
fn key_generation() {
    for case in cases("key_gen", 3) {
        let key = Decapsulator::from_seed(&seed(&case));
        assert_eq!(Sha256::digest(key.public()).to_vec(), bytes(&case, "ek_sha256"), "{}", case["tc"]);
        #[expect(deprecated, reason = "NIST's answer is the expanded key")]
        let expanded = ml_kem::ExpandedKeyEncoding::to_expanded_bytes(&*key.0);
        assert_eq!(Sha256::digest(expanded).to_vec(), bytes(&case, "dk_sha256"), "{}", case["tc"]);
    }
}

#[test]
fn encapsulation() {
    for case in cases("encapsulation", 4) {
        let key = Encapsulator::new(&bytes(&case, "ek").try_into().unwrap()).unwrap();
        let (ciphertext, shared) = key.seal(&bytes(&case, "m").try_into().unwrap());
        assert_eq!(shared[..], bytes(&case, "k"), "{}", case["tc"]);
        assert_eq!(Sha256::digest(ciphertext).to_vec(), bytes(&case, "c_sha256"), "{}", case["tc"]);
    }
}

#[test]
fn encapsulation_key_check() {
    let mut refused = 0;
    for case in cases("encapsulation_key_check", 6) {
        let passed = Encapsulator::new(&bytes(&case, "ek").try_into().unwrap()).is_ok();
        assert_eq!(passed, case["passed"].as_bool().unwrap(), "{}", case["tc"]);
        refused += usize::from(!passed);
    }
    assert_eq!(refused, 3);
}

/// FIPS 203, algorithm 18: a ciphertext that is not one gives SHAKE-256 of `z` and the ciphertext, never an error.
#[test]
fn implicit_rejection() {
    for case in cases("key_gen", 3) {
        let key = Decapsulator::from_seed(&seed(&case));
        let (ciphertext, shared) =
            Encapsulator::new(&key.public().try_into().unwrap()).unwrap().seal(&[9; 32]);
        let mut ciphertext: [u8; CIPHERTEXT_BYTES] = ciphertext.try_into().unwrap();
        assert_eq!(key.open(&ciphertext), shared);
        for at in [0, 500, CIPHERTEXT_BYTES - 1] {
            ciphertext[at] ^= 1;
            let mut rejected = [0; 32];
            let mut hash = Shake256::default();
            hash.update(&bytes(&case, "z"));
            hash.update(&ciphertext);
            hash.finalize_xof().read(&mut rejected);
            assert_eq!(*key.open(&ciphertext), rejected);
        }
    }
}

/// Every encoding of a point of low order, two of them not reduced: all give zero, whatever the secret, and all are refused.
#[test]
fn all_points_of_low_order() {
    use hex_literal::hex;
    let mut points = vec![
        [0; 32],
        hex!("0100000000000000000000000000000000000000000000000000000000000000"),
        hex!("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        hex!("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
        hex!("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        hex!("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        hex!("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    ];
    // The highest bit is ignored (RFC 7748, section 5), so each has a twin.
    for n in 0..points.len() {
        let mut twin = points[n];
        twin[31] |= 0x80;
        points.push(twin);
    }
    for point in points {
        for secret in [[1; 32], [0x77; 32], [0xff; 32]] {
            assert_eq!(x25519(&secret, &point).unwrap_err(), BadKey, "{point:02x?}");
        }
    }
}

#[test]
fn the_table_and_the_ladder_agree() {
    let mut secret = [0xff; 32];
    for _ in 0..64 {
        let public = x25519_public(&secret);
        assert_eq!(public, x25519_dalek::x25519(secret, x25519_dalek::X25519_BASEPOINT_BYTES));
        secret = public;
    }
}
