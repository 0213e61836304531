//! What needs the pattern without a pre-shared key, which only these tests can name.
use hex_literal::hex;

use super::*;
use crate::session::secret::PreSharedKey;

fn initiator_random(ephemeral: u8, seed: u8) -> InitiatorRandom {
    InitiatorRandom { ephemeral: [ephemeral; 32], kem_seed: [seed; 64] }
}

fn responder_random(ephemeral: u8, encapsulation: u8) -> ResponderRandom {
    ResponderRandom { ephemeral: [ephemeral; 32], encapsulation: [encapsulation; 32] }
}

fn nothing(_: TranscriptHash) -> Result<Vec<u8>, HandshakeError> {
    Ok(Vec::new())
}

/// One vector of the draft's public set: base byte, message 3, handshake hash, and the keys to the responder and to the initiator.
struct PublicVector {
    base: u8,
    third: [u8; 64],
    hash: [u8; 32],
    to_responder: [u8; 32],
    to_initiator: [u8; 32],
}

/// All five vectors of libp2p/specs#727, as published in paschal533/pq-noise-artifacts (`vectors/pqc-test-vectors.json`, CC BY 4.0).
/// They have no prologue, no payload and no pre-shared key. The hash covers every byte of the three messages; message 3 is short
/// enough to be here as well.
const PUBLIC_VECTORS: [PublicVector; 5] = [
    PublicVector {
        base: 0x10,
        third: hex!(
            "ecee945a65a96f34fdaf116d3c70727852b0a25eb350bf72bb088f21cb374ba50c973fdc4ea63d2065ac9ff9fb347f0700dcf7ec3bb3a3c01f84290c6d8931aa"
        ),
        hash: hex!("b5a3c9854777aa5dad0a633c769bcc6662713f20f14e0371e4bfd253e1869eef"),
        to_responder: hex!("0a825d67cbf14170dcccf6f5c54d50f46a9a23541122654f5bec41ef0a5657e5"),
        to_initiator: hex!("f8546817671a440fd8df45b26fd6b45ebbf39e4207455ca12bc6d56ac0b35ebc"),
    },
    PublicVector {
        base: 0x20,
        third: hex!(
            "ddacbb789c886b769fb3db311cfe929ed25301dc766b5a8ca04583fc8cd0d5bc54cc56deb3d300e63e3534b46f54540ce41cea986171a331ab145e78ae88a207"
        ),
        hash: hex!("50e755712c5868f17eff3cb04fce684b6401fc59fa491f16c18af1f8d69fdf5d"),
        to_responder: hex!("aa143be94bcfb2ebb59fd99e0f1c71cae2d4754ca3fe0e7b898e0a7ddda5ea6c"),
        to_initiator: hex!("fb1f9bc96bdba7cd9c437a573944abafbfcda24bc474a9495d23645db7db393d"),
    },
    PublicVector {
        base: 0x30,
        third: hex!(
            "18a1136e9091913127f71ffcdba858fdb0cb1efaf2645b01a39f809f50ec2ef2319dea8c7f6b27976cd11d2f6cc460d1216fbc2920a22888996d32fba80bc9a0"
        ),
        hash: hex!("1c7ed2de225611fde19364a9185cba5b3a57253af0ae6200f289527b6c4484db"),
        to_responder: hex!("42922fb7bab1dde089f464e9bc525f99f272447f0e9a7948bcd8ba929d5cc4da"),
        to_initiator: hex!("3cacd98adce72d5fe65927e8df29d394c76c566b7619f696a038d0ad833b64cd"),
    },
    PublicVector {
        base: 0x40,
        third: hex!(
            "d3c0eab4a7092c4535043ab9bdd72348d4ec104bc46f5aee873148851bb3c56784efa96639e0cf4689fcee771dd5f4fa2ab49f0450e68661bf2512295cec66f6"
        ),
        hash: hex!("770351da42cebf58ba52b9a49d7c991dd870c42130fe2e41ef499f8547237c26"),
        to_responder: hex!("4dc6ea657c1179d9cd83adfa2ad004e5b808682d531b72ee6b1548c4c584eb19"),
        to_initiator: hex!("2097e5211c3d8e0edaa9be75542691cb5681276ba2ef0995a9e85b7e23fff4bc"),
    },
    PublicVector {
        base: 0x50,
        third: hex!(
            "0167a61322a57abf26861150071f9b88bf44ad17520285b8be35c495d9ee6f56bbd0b2c0f6f9a83b532a0b6a18849ba5a2394fa5419c75062f2e8542bc436865"
        ),
        hash: hex!("1a4caf599d82b7de6605d8f20745e05067fa4f0d6ee755bc1382775b6e3890e4"),
        to_responder: hex!("79552abe46606dbbd83160a07c7be1ef18416c0d232139d49e123ef421ebd2ac"),
        to_initiator: hex!("f87b71e7a2c37470959b6a4baa762c82458fa011446ea1ed50047ca8de58e883"),
    },
];

/// Secrets of a vector are its base byte plus 1 (static, initiator), 2 (static, responder), 3 and 4 (ephemeral), 5 (ML-KEM seed) and 6
/// (encapsulation), each repeated.
#[test]
fn public_vectors_1_to_5() {
    for vector in PUBLIC_VECTORS {
        let base = vector.base;
        let params = |secret: u8| Params::without_psk(Vec::new(), StaticKey::from_secret([secret; 32]));
        let (state_i, first) =
            Initiator::start(&params(base + 1), initiator_random(base + 3, base + 5)).unwrap();
        let state_r = AwaitHello::new(&params(base + 2)).read(&first).unwrap();
        let (second, state_r) = state_r.write(responder_random(base + 4, base + 6), nothing).unwrap();
        let (state_i, received) = state_i.read(&second).unwrap();
        assert!(received.payload.is_empty());
        let (third, split_i) = state_i.write(nothing).unwrap();
        let (_, split_r) = state_r.read(&third).unwrap();

        assert_eq!([first.len(), second.len(), third.len()], [1216, 1200, 64]);
        assert_eq!(third, vector.third);
        assert_eq!(*split_i.hash.as_bytes(), vector.hash, "{base:#x}");
        assert_eq!(*split_r.hash.as_bytes(), vector.hash);
        assert_eq!(*split_i.send.expose(), vector.to_responder);
        assert_eq!(*split_i.receive.expose(), vector.to_initiator);
        assert_eq!(*split_r.send.expose(), vector.to_initiator);
        assert_eq!(*split_r.receive.expose(), vector.to_responder);
    }
}

/// FIPS 203, section 7.2: coefficients of q or more are refused. With a pre-shared key the field is encrypted, so only a member
/// could send this.
#[test]
fn an_unreduced_encapsulation_key_is_refused() {
    let params = Params::without_psk(Vec::new(), StaticKey::from_secret([1; 32]));
    let (_, mut first) = Initiator::start(&params, initiator_random(3, 4)).unwrap();
    first[32..35].copy_from_slice(&[0xff; 3]);
    let error = AwaitHello::new(&params).read(&first).unwrap_err();
    assert_eq!(error, HandshakeError::EncapsulationKey);
}

#[test]
fn the_two_patterns_do_not_talk() {
    let key = || StaticKey::from_secret([1; 32]);
    let with = Params::new(PreSharedKey::from_bytes([7; 32]), Vec::new(), key());
    let without = Params::without_psk(Vec::new(), key());
    let (_, first) = Initiator::start(&without, initiator_random(3, 4)).unwrap();
    assert_eq!(AwaitHello::new(&with).read(&first).unwrap_err(), HandshakeError::Length);
    let (_, first) = Initiator::start(&with, initiator_random(3, 4)).unwrap();
    assert_eq!(AwaitHello::new(&without).read(&first).unwrap_err(), HandshakeError::Length);
}

/// Low order in both roles: every such point gives a zero result, whatever the secret.
#[test]
fn points_of_low_order_are_refused() {
    let low_order: [[u8; 32]; 4] = [
        [0; 32],
        {
            let mut one = [0; 32];
            one[0] = 1;
            one
        },
        hex!("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        hex!("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    ];
    for point in low_order {
        let params = Params::without_psk(Vec::new(), StaticKey::from_secret([1; 32]));
        let (_, mut first) = Initiator::start(&params, initiator_random(3, 4)).unwrap();
        first[..32].copy_from_slice(&point);
        let state = AwaitHello::new(&params).read(&first).unwrap();
        let error = state.write(responder_random(5, 6), nothing).unwrap_err();
        assert_eq!(error, HandshakeError::LowOrder);

        let params =
            Params::new(PreSharedKey::from_bytes([7; 32]), Vec::new(), StaticKey::from_secret([1; 32]));
        let (state, first) = Initiator::start(&params, initiator_random(3, 4)).unwrap();
        let hello = AwaitHello::new(&params).read(&first).unwrap();
        let (mut second, _) = hello.write(responder_random(5, 6), nothing).unwrap();
        second[..32].copy_from_slice(&point);
        assert_eq!(state.read(&second).unwrap_err(), HandshakeError::LowOrder);
    }
}

#[test]
fn debug_shows_no_secret() {
    let params =
        Params::new(PreSharedKey::from_bytes([0xab; 32]), vec![], StaticKey::from_secret([0xcd; 32]));
    let (state, _) = Initiator::start(&params, initiator_random(0xab, 0xab)).unwrap();
    let text = format!("{params:?} {state:?} {:?} {:?}", initiator_random(0xab, 0xab), params.static_key);
    assert!(!text.contains("171") && !text.contains("205"), "{text}");
}
