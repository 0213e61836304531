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

/// Vector 1 of the draft's public set; its hash covers every byte of the three messages.
#[test]
fn public_vector_1() {
    let params = |secret: u8| Params::without_psk(Vec::new(), StaticKey::from_secret([secret; 32]));
    let (state_i, first) = Initiator::start(&params(0x11), initiator_random(0x13, 0x15)).unwrap();
    let state_r = AwaitHello::new(&params(0x12)).read(&first).unwrap();
    let (second, state_r) = state_r.write(responder_random(0x14, 0x16), nothing).unwrap();
    let (state_i, received) = state_i.read(&second).unwrap();
    assert!(received.payload.is_empty());
    let (third, split_i) = state_i.write(nothing).unwrap();
    let (_, split_r) = state_r.read(&third).unwrap();

    assert_eq!([first.len(), second.len(), third.len()], [1216, 1200, 64]);
    assert_eq!(third[..8], hex!("ecee945a65a96f34"));
    let hash = hex!("b5a3c9854777aa5dad0a633c769bcc6662713f20f14e0371e4bfd253e1869eef");
    assert_eq!(*split_i.hash.as_bytes(), hash);
    assert_eq!(*split_r.hash.as_bytes(), hash);
    let to_responder = hex!("0a825d67cbf14170dcccf6f5c54d50f46a9a23541122654f5bec41ef0a5657e5");
    let to_initiator = hex!("f8546817671a440fd8df45b26fd6b45ebbf39e4207455ca12bc6d56ac0b35ebc");
    assert_eq!(*split_i.send.expose(), to_responder);
    assert_eq!(*split_i.receive.expose(), to_initiator);
    assert_eq!(*split_r.send.expose(), to_initiator);
    assert_eq!(*split_r.receive.expose(), to_responder);
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
