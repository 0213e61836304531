use super::*;

fn pair(seed: u8) -> KeyPair {
    KeyPair::from_seed(&Zeroizing::new([seed; SEED_BYTES]))
}

#[test]
fn a_signature_holds_for_one_pair_domain_and_message() {
    let (own, other) = (pair(1), pair(2));
    let signature = own.sign(Domain::Join, b"hello").unwrap();
    assert!(signature.verifies(own.public(), Domain::Join, b"hello"));
    assert!(!signature.verifies(own.public(), Domain::Identity, b"hello"));
    assert!(!signature.verifies(own.public(), Domain::Join, b"hellp"));
    assert!(!signature.verifies(other.public(), Domain::Join, b"hello"));
    // The neutral point as a key, and as the point of a signature: without the strict form it verifies for every message. The other
    // half is good.
    let mut neutral = [0; 32];
    neutral[0] = 1;
    let small = PublicKeys { ed25519: neutral, ml_dsa: own.public().ml_dsa().clone() };
    let mut bytes = *signature.as_bytes();
    bytes[..64].fill(0);
    bytes[0] = 1;
    assert!(!Signature::from_bytes(bytes).verifies(&small, Domain::Join, b"hello"));
}

/// Both halves of either key pair, in all four combinations: only the one with both good halves holds.
#[test]
fn only_one_good_signature_is_refused() {
    let (own, other) = (pair(1), pair(2));
    let good = own.sign(Domain::Join, b"hello").unwrap();
    let bad = other.sign(Domain::Join, b"hello").unwrap();
    let mixed = |classical: &Signature, post_quantum: &Signature| {
        let mut bytes = *classical.as_bytes();
        bytes[64..].copy_from_slice(&post_quantum.as_bytes()[64..]);
        Signature::from_bytes(bytes)
    };
    assert!(mixed(&good, &good).verifies(own.public(), Domain::Join, b"hello"));
    assert!(!mixed(&good, &bad).verifies(own.public(), Domain::Join, b"hello"));
    assert!(!mixed(&bad, &good).verifies(own.public(), Domain::Join, b"hello"));
    // The bad halves are good ones of somebody else's, and it takes both of that one's keys, too.
    let crossed = PublicKeys { ed25519: *own.public().ed25519(), ml_dsa: other.public().ml_dsa().clone() };
    assert!(mixed(&good, &bad).verifies(&crossed, Domain::Join, b"hello"));
    assert!(!good.verifies(&crossed, Domain::Join, b"hello"));
}

#[test]
fn every_changed_byte_is_caught() {
    let own = pair(1);
    let good = own.sign(Domain::Join, b"hello").unwrap();
    for at in (0..SIGNATURE_BYTES).step_by(13).chain([63, 64, SIGNATURE_BYTES - 1]) {
        let mut bytes = *good.as_bytes();
        bytes[at] ^= 1;
        assert!(!Signature::from_bytes(bytes).verifies(own.public(), Domain::Join, b"hello"), "byte {at}");
    }
}

#[test]
fn a_pair_is_its_two_seeds() {
    let mut seed = Zeroizing::new([1; SEED_BYTES]);
    seed[32..].fill(2);
    let mixed = KeyPair::from_seed(&seed);
    assert_eq!(mixed.public().ed25519(), pair(1).public().ed25519());
    assert_eq!(mixed.public().ml_dsa(), pair(2).public().ml_dsa());
    assert_eq!(*mixed.seed(), *seed);
}

#[test]
fn keys_and_signatures_travel_as_their_bytes() {
    let own = pair(1);
    let signature = own.sign(Domain::Join, b"x").unwrap();
    let bytes = crate::codec::encode::<_, 4096>(&signature).unwrap();
    assert_eq!(bytes[3..], signature.as_bytes()[..]);
    assert_eq!(crate::codec::decode::<Signature, 4096>(&bytes).unwrap(), signature);
    let bytes = crate::codec::encode::<_, 4096>(own.public()).unwrap();
    assert_eq!(bytes.len(), 32 + 3 + ML_DSA_KEY_BYTES);
    assert_eq!(&crate::codec::decode::<PublicKeys, 4096>(&bytes).unwrap(), own.public());
    // One byte less or more than a key has.
    for length in [ML_DSA_KEY_BYTES - 1, ML_DSA_KEY_BYTES + 1] {
        let other = crate::codec::encode::<_, 4096>(&vec![7u8; length]).unwrap();
        assert!(crate::codec::decode::<MlDsaKey, 4096>(&other).is_err());
    }
}
