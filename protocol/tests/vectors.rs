//! The handshake against itself, against the `snow` crate in both roles, and the primitives against public values.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]
use hex_literal::hex;
use ml_kem::{
    DecapsulationKey768,
    kem::{Decapsulate as _, KeyExport as _},
};
use octomesh_protocol::session::{
    handshake::{
        AwaitHello, HandshakeError, Initiator, MESSAGE_1_BYTES, MESSAGE_2_OVERHEAD, MESSAGE_3_OVERHEAD,
        StaticKey, TranscriptHash,
    },
    record::{MAX_BODY_BYTES, Opener, Record, RecordLimits, Sealer},
};
use sha2::{Digest as _, Sha256};

mod snow_oracle;
mod support;
use support::{PAYLOAD_I, PAYLOAD_R, initiator_random, params, responder_random, run};

#[test]
fn what_one_side_sends_the_other_receives() {
    let ran = run(7, 7, None).unwrap();
    assert_eq!(ran.initiator.send, ran.responder.receive);
    assert_eq!(ran.initiator.receive, ran.responder.send);
    assert_ne!(ran.initiator.send, ran.initiator.receive);
    assert_eq!(ran.initiator.rekey_secret, ran.responder.rekey_secret);
    assert_eq!(ran.initiator.hash, ran.responder.hash);
    assert_eq!(ran.initiator.remote_static, *StaticKey::from_secret([2; 32]).public());
    let lengths = ran.messages.each_ref().map(Vec::len);
    assert_eq!(
        lengths,
        [MESSAGE_1_BYTES, MESSAGE_2_OVERHEAD + PAYLOAD_R.len(), MESSAGE_3_OVERHEAD + PAYLOAD_I.len()]
    );
    assert_eq!(MESSAGE_1_BYTES, 1248);
}

#[test]
fn a_wrong_secret_is_refused_at_message_1() {
    let (_, first) = Initiator::start(&params(7, 1), initiator_random(3)).unwrap();
    let error = AwaitHello::new(&params(8, 2)).read(&first).unwrap_err();
    assert_eq!(error, HandshakeError::Authentication);
}

#[test]
fn every_changed_byte_of_the_handshake_is_caught() {
    let lengths = run(7, 7, None).unwrap().messages.map(|m| m.len());
    for (number, length) in lengths.into_iter().enumerate() {
        // All of the short message, a stride of the long ones that meets every field.
        let stride = if number == 2 { 1 } else { 11 };
        for at in (0..length).step_by(stride) {
            assert!(run(7, 7, Some((number, at))).is_err(), "message {number}, byte {at}");
        }
    }
}

#[test]
fn a_first_message_of_one_session_does_not_finish_another() {
    let payload = |_: TranscriptHash| Ok::<_, HandshakeError>(b"x".to_vec());
    let (state_a, _) = Initiator::start(&params(7, 1), initiator_random(3)).unwrap();
    let (_, replayed) = Initiator::start(&params(7, 1), initiator_random(5)).unwrap();
    let (second, _) =
        AwaitHello::new(&params(7, 2)).read(&replayed).unwrap().write(responder_random(4), payload).unwrap();
    assert_eq!(state_a.read(&second).unwrap_err(), HandshakeError::Authentication);
}

/// Frozen: all randomness fixed, `psk` and prologue as in `support`. `snow` gives the same messages, hash
/// and keys in the two tests below.
#[test]
fn our_own_psk0_vector() {
    let ran = run(7, 7, None).unwrap();
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
    assert_eq!(
        hex(&Sha256::digest(ran.messages.concat())),
        "d3137b0951cfbfec189dc55d65573b20b33caa3caf6a3864c57ff7ff68fad08b"
    );
    assert_eq!(
        hex(ran.initiator.hash.as_bytes()),
        "36c1120bb5881058460f57fbf96a6aff07b7928f6a87c85651c8cb60917b2349"
    );
    assert_eq!(
        hex(ran.initiator.send.expose()),
        "494a4d7230f0e4607a85bbf787ce1027318f40c46e69d06989f97b0d36e98d59"
    );
    assert_eq!(
        hex(ran.initiator.receive.expose()),
        "fb17072211230edb3e4bef1965a6a0b0cc41e2ee5dd9dc1dacf0d0effd7056c9"
    );
    assert_eq!(
        hex(ran.initiator.rekey_secret.expose()),
        "6e7c98839398c44f5d40d642f39bc3dda79ad164b680b81a5f3b8dcbf0098593"
    );
}

#[test]
fn snow_answers_us() {
    let (mut out, mut payload) = (vec![0; 4096], vec![0; 4096]);
    let mut snow = snow_oracle::builder(&[2; 32], &[7; 32], 4).build_responder().unwrap();
    let (state, first) = Initiator::start(&params(7, 1), initiator_random(3)).unwrap();
    snow.read_message(&first, &mut payload).unwrap();
    let length = snow.write_message(PAYLOAD_R, &mut out).unwrap();
    // Same keys and randomness: not only compatible, but the same bytes as the frozen vector.
    assert_eq!(out[..length], run(7, 7, None).unwrap().messages[1]);
    let (state, received) = state.read(&out[..length]).unwrap();
    assert_eq!(received.payload, PAYLOAD_R);
    let (third, split) = state.write(|_| Ok::<_, HandshakeError>(PAYLOAD_I.to_vec())).unwrap();
    let length = snow.read_message(&third, &mut payload).unwrap();
    assert_eq!(&payload[..length], PAYLOAD_I);
    assert_eq!(snow.get_handshake_hash(), split.hash.as_bytes());
    assert_eq!(snow.get_remote_static().unwrap(), StaticKey::from_secret([1; 32]).public());
    let (to_responder, to_initiator) = snow.dangerously_get_raw_split();
    assert_eq!((&to_responder, &to_initiator), (split.send.expose(), split.receive.expose()));
}

#[test]
fn we_answer_snow() {
    let (mut out, mut payload) = (vec![0; 4096], vec![0; 4096]);
    let mut snow = snow_oracle::builder(&[1; 32], &[7; 32], 3).build_initiator().unwrap();
    let length = snow.write_message(&[], &mut out).unwrap();
    let messages = run(7, 7, None).unwrap().messages;
    assert_eq!(out[..length], messages[0]);
    let state = AwaitHello::new(&params(7, 2)).read(&out[..length]).unwrap();
    let (second, state) =
        state.write(responder_random(4), |_| Ok::<_, HandshakeError>(PAYLOAD_R.to_vec())).unwrap();
    let length = snow.read_message(&second, &mut payload).unwrap();
    assert_eq!(&payload[..length], PAYLOAD_R);
    let length = snow.write_message(PAYLOAD_I, &mut out).unwrap();
    assert_eq!(out[..length], messages[2]);
    let (received, split) = state.read(&out[..length]).unwrap();
    assert_eq!(received.payload, PAYLOAD_I);
    assert_eq!(snow.get_handshake_hash(), split.hash.as_bytes());
    let (to_responder, to_initiator) = snow.dangerously_get_raw_split();
    assert_eq!((&to_responder, &to_initiator), (split.receive.expose(), split.send.expose()));
}

/// The accumulated answer of ML-KEM-768 over 100 rounds of key generation, encapsulation, decapsulation and rejection, with all
/// input drawn from SHAKE-128 of nothing.
#[test]
fn ml_kem_accumulated_answer() {
    use shake::{
        Shake128,
        digest::{ExtendableOutput as _, Update as _, XofReader as _},
    };
    let mut source = Shake128::default().finalize_xof();
    let mut accumulated = Shake128::default();
    for _ in 0..100 {
        let mut seed = [0; 64];
        source.read(&mut seed);
        let key = DecapsulationKey768::from_seed(seed.into());
        let public = key.encapsulation_key();
        accumulated.update(&public.to_bytes());
        let mut random = [0; 32];
        source.read(&mut random);
        let (ciphertext, shared) = public.encapsulate_deterministic(&random.into());
        accumulated.update(&ciphertext);
        accumulated.update(&shared);
        assert_eq!(key.decapsulate(&ciphertext), shared);
        let mut junk = [0; 1088];
        source.read(&mut junk);
        accumulated.update(&key.decapsulate(&junk.into()));
    }
    let mut answer = [0; 32];
    accumulated.finalize_xof().read(&mut answer);
    assert_eq!(answer, hex!("1114b1b6699ed191734fa339376afa7e285c9e6acf6ff0177d346696ce564415"));
}

/// RFC 7748, section 5.2: both vectors, and the function applied 1 and 1,000 times to its own results.
#[test]
fn x25519_of_the_rfc() {
    let x25519 = x25519_dalek::x25519;
    for (scalar, point, result) in [
        (
            hex!("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"),
            hex!("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"),
            hex!("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"),
        ),
        (
            hex!("4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d"),
            hex!("e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493"),
            hex!("95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957"),
        ),
    ] {
        assert_eq!(x25519(scalar, point), result);
    }
    let (mut scalar, mut point) =
        (x25519_dalek::X25519_BASEPOINT_BYTES, x25519_dalek::X25519_BASEPOINT_BYTES);
    for round in 1..=1000 {
        (scalar, point) = (x25519(scalar, point), scalar);
        if round == 1 {
            assert_eq!(scalar, hex!("422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"));
        }
    }
    assert_eq!(scalar, hex!("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"));
}

/// RFC 7748, section 6.1: the public keys through our own key type.
#[test]
fn diffie_hellman_of_the_rfc() {
    let alice = hex!("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
    let bob = hex!("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
    let public = |secret| *StaticKey::from_secret(secret).public();
    assert_eq!(public(alice), hex!("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
    assert_eq!(public(bob), hex!("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"));
    let shared = hex!("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
    assert_eq!(x25519_dalek::x25519(alice, public(bob)), shared);
    assert_eq!(x25519_dalek::x25519(bob, public(alice)), shared);
}

/// RFC 8439, appendix A.3, vectors 5 to 11: the carries of Poly1305 at 2^130-5. No key of a session leads to these values, so the
/// library's own authenticator is asked, with `r`, `s`, message and tag.
#[test]
fn poly1305_at_its_modulus() {
    use poly1305::{Poly1305, universal_hash::KeyInit as _};
    type Block = [u8; 16];
    let fill = |first: u8, rest: u8| -> Block {
        let mut block = [rest; 16];
        block[0] = first;
        block
    };
    let (zero, ones) = (fill(0, 0), fill(0xff, 0xff));
    let odd = hex!("01000000000000000400000000000000");
    let long = hex!(
        "e33594d7505e43b900000000000000003394d7505e4379cd01000000000000000000000000000000000000000000000001000000000000000000000000000000"
    );
    let cases: [(Block, Block, Vec<u8>, Block); 7] = [
        (fill(2, 0), zero, ones.to_vec(), fill(3, 0)),
        (fill(2, 0), ones, fill(2, 0).to_vec(), fill(3, 0)),
        (fill(1, 0), zero, [ones, fill(0xf0, 0xff), fill(0x11, 0)].concat(), fill(5, 0)),
        (fill(1, 0), zero, [ones, fill(0xfb, 0xfe), fill(1, 1)].concat(), zero),
        (fill(2, 0), zero, fill(0xfd, 0xff).to_vec(), fill(0xfa, 0xff)),
        (odd, zero, long.to_vec(), hex!("14000000000000005500000000000000")),
        (odd, zero, long[..48].to_vec(), fill(0x13, 0)),
    ];
    for (n, (r, s, message, tag)) in cases.into_iter().enumerate() {
        let key: [u8; 32] = [r, s].concat().try_into().unwrap();
        let got = Poly1305::new(&key.into()).compute_unpadded(&message);
        assert_eq!(got[..], tag, "vector {}", n + 5);
    }
}

fn sealed(sealer: &mut Sealer, body: &[u8]) -> Vec<u8> {
    let mut record = vec![0; 3];
    record.extend_from_slice(body);
    sealer.seal(&mut record).unwrap();
    record
}

#[test]
fn records_between_the_two_sides() {
    let ran = run(7, 7, None).unwrap();
    let mut sealer = Sealer::new(&ran.initiator.send, RecordLimits::default());
    let mut opener = Opener::new(&ran.responder.receive, RecordLimits::default());
    for body in [&b""[..], b"a", &vec![5; MAX_BODY_BYTES]] {
        let record = sealed(&mut sealer, body);
        let (prefix, rest) = record.split_first_chunk::<2>().unwrap();
        assert_eq!(Opener::sealed_bytes(*prefix).unwrap(), rest.len());
        assert_eq!(opener.open(&mut rest.to_vec()).unwrap(), Record::Data(body));
    }
    // A record sent back to where it came from, whose number is the one that is awaited there.
    let record = sealed(&mut Sealer::new(&ran.initiator.send, RecordLimits::default()), b"mirror");
    let mut own = Opener::new(&ran.initiator.receive, RecordLimits::default());
    assert!(own.open(&mut record[2..].to_vec()).is_err());
}

/// The key pair of the seed 00 01 .. 1f: the example of RFC 9881, appendix C, as the crate ships it.
#[test]
fn ml_dsa_key_of_the_rfc() {
    use ml_dsa::{KeyExport as _, Keypair as _, MlDsa65, SigningKey};
    let seed: [u8; 32] = std::array::from_fn(|i| i as u8);
    let key = SigningKey::<MlDsa65>::from_seed(&seed.into());
    let digest: [u8; 32] = Sha256::digest(key.verifying_key().to_bytes()).into();
    assert_eq!(digest, hex!("d666806e11cee19a7c989f7445f90dd419cf4d2d51db8c0fdb4c0f0a542238c9"));
}

/// The accumulated answer of ML-DSA-65 over 100 rounds of key generation and deterministic signing of nothing, seeds drawn from
/// SHAKE-128 of nothing.
#[test]
fn ml_dsa_accumulated_answer() {
    use ml_dsa::{KeyExport as _, Keypair as _, MlDsa65, SigningKey, Verifier as _};
    use shake::{
        Shake128,
        digest::{ExtendableOutput as _, Update as _, XofReader as _},
    };
    let mut source = Shake128::default().finalize_xof();
    let mut accumulated = Shake128::default();
    for _ in 0..100 {
        let mut seed = [0; 32];
        source.read(&mut seed);
        let key = SigningKey::<MlDsa65>::from_seed(&seed.into());
        accumulated.update(&key.verifying_key().to_bytes());
        let signature = key.expanded_key().sign_deterministic(&[], &[]).unwrap();
        accumulated.update(&signature.encode());
        assert!(key.verifying_key().verify(&[], &signature).is_ok());
    }
    let mut answer = [0; 32];
    accumulated.finalize_xof().read(&mut answer);
    assert_eq!(answer, hex!("8358a1843220194417cadbc2651295cd8fc65125b5a5c1a239a16dc8b57ca199"));
}
