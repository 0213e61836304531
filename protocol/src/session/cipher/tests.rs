use hex_literal::hex;

use super::{rust_crypto::RustCrypto, *};

/// Each test holds every library that is built in to the same.
macro_rules! for_each_library {
    ($($test:ident)*) => {
        mod rust_crypto_crate {
            $(#[test] fn $test() { super::$test::<super::RustCrypto>(); })*
        }
        #[cfg(feature = "aead-aws-lc")]
        mod aws_lc_crate {
            $(#[test] fn $test() { super::$test::<super::super::aws_lc::AwsLc>(); })*
        }
    };
}

for_each_library! {
    rfc_8439_section_2_8_2 rfc_8439_appendix_a_5 any_changed_bit_is_refused nonce_layout_and_end
    a_failed_open_does_not_move_the_counter
}

/// Its nonce has a constant part that Noise's has not, so the library is asked without the counter.
fn rfc_8439_section_2_8_2<A: Aead>() {
    let key = hex!("808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f");
    let nonce = hex!("070000004041424344454647");
    let ad = hex!("50515253c0c1c2c3c4c5c6c7");
    let plain = *b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.";
    let mut text = plain;
    let aead = A::new(&key);
    let tag = aead.seal(&nonce, &ad, &mut text).unwrap();
    assert_eq!(
        text,
        hex!(
            "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6"
            "3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36"
            "92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
            "3ff4def08e4b7a9de576d26586cec64b6116"
        )
    );
    assert_eq!(tag, hex!("1ae10b594f09e26a7e902ecbd0600691"));
    aead.open(&nonce, &ad, &mut text, &tag).unwrap();
    assert_eq!(text, plain);
}

fn rfc_8439_appendix_a_5<A: Aead>() {
    let key = hex!("1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0");
    let nonce = hex!("000000000102030405060708");
    let ad = hex!("f33388860000000000004e91");
    let mut text = hex!(
        "64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb2"
        "4c6cfc18755d43eea09ee94e382d26b0bdb7b73c321b0100d4f03b7f355894cf"
        "332f830e710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c855"
        "9797a06ef4f0ef61c186324e2b3506383606907b6a7c02b0f9f6157b53c867e4"
        "b9166c767b804d46a59b5216cde7a4e99040c5a40433225ee282a1b0a06c523e"
        "af4534d7f83fa1155b0047718cbc546a0d072b04b3564eea1b422273f548271a"
        "0bb2316053fa76991955ebd63159434ecebb4e466dae5a1073a6727627097a10"
        "49e617d91d361094fa68f0ff77987130305beaba2eda04df997b714d6c6f2c29"
        "a6ad5cb4022b02709b"
    );
    let tag = hex!("eead9d67890cbb22392336fea1851f38");
    A::new(&key).open(&nonce, &ad, &mut text, &tag).unwrap();
    assert!(text.starts_with(b"Internet-Drafts are draft documents valid for a maximum of six months"));
    // The nonce of Noise is this one with its counter at this value.
    let mut cipher = Cipher::<A>::new(&key);
    cipher.counter = 0x0807_0605_0403_0201;
    assert_eq!(cipher.seal(&ad, &mut text), Ok(tag));
}

fn any_changed_bit_is_refused<A: Aead>() {
    let (key, nonce, ad) = ([1; 32], [2; 12], *b"associated");
    let aead = A::new(&key);
    let mut text = *b"some text that is longer than one block of the cipher, so longer than sixty-four bytes";
    let tag = aead.seal(&nonce, &ad, &mut text).unwrap();
    let opens = |nonce: &[u8; 12], ad: &[u8], text: &[u8], tag: &[u8; TAG_BYTES]| {
        aead.open(nonce, ad, &mut text.to_vec(), tag)
    };
    assert_eq!(opens(&nonce, &ad, &text, &tag), Ok(()));
    fn flipped<const N: usize>(bytes: [u8; N], bit: usize) -> [u8; N] {
        let mut bytes = bytes;
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    }
    for bit in 0..8 * nonce.len() {
        assert_eq!(opens(&flipped(nonce, bit), &ad, &text, &tag), Err(Refused), "nonce, bit {bit}");
    }
    for bit in 0..8 * ad.len() {
        assert_eq!(opens(&nonce, &flipped(ad, bit), &text, &tag), Err(Refused), "associated, bit {bit}");
    }
    for bit in 0..8 * text.len() {
        assert_eq!(opens(&nonce, &ad, &flipped(text, bit), &tag), Err(Refused), "text, bit {bit}");
    }
    for bit in 0..8 * tag.len() {
        assert_eq!(opens(&nonce, &ad, &text, &flipped(tag, bit)), Err(Refused), "tag, bit {bit}");
    }
    assert_eq!(opens(&nonce, &[], &text, &tag), Err(Refused), "nothing associated");
    assert_eq!(opens(&nonce, &ad, &text[1..], &tag), Err(Refused), "cut");
}

fn nonce_layout_and_end<A: Aead>() {
    let mut cipher = Cipher::<A>::new(&[1; 32]);
    cipher.counter = 0x0102_0304_0506_0708;
    assert_eq!(cipher.nonce(), Ok([0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1]));
    cipher.counter = u64::MAX;
    assert_eq!(cipher.seal(b"", &mut [0; 4]), Err(Refused));
    assert_eq!(cipher.open(b"", &mut [0; 40]), Err(Refused));
}

fn a_failed_open_does_not_move_the_counter<A: Aead>() {
    let (mut a, mut b) = (Cipher::<A>::new(&[1; 32]), Cipher::<A>::new(&[1; 32]));
    let mut text = *b"hello";
    let tag = a.seal(b"ad", &mut text).unwrap();
    let sealed = [&text[..], &tag].concat();
    for at in 0..sealed.len() {
        let mut bad = sealed.clone();
        bad[at] ^= 1;
        assert_eq!(b.open(b"ad", &mut bad), Err(Refused));
    }
    assert_eq!(b.open(b"other", &mut sealed.clone()), Err(Refused));
    assert_eq!(b.open(b"ad", &mut [0; 15]), Err(Refused));
    assert_eq!(b.open(b"ad", &mut sealed.clone()).unwrap(), b"hello");
    assert_eq!(b.open(b"ad", &mut { sealed }), Err(Refused), "a replay");
}

/// Around the blocks of both algorithms, and up to a whole record.
#[cfg(feature = "aead-aws-lc")]
#[test]
fn both_libraries_agree_at_every_length() {
    let (mut ours, mut default) =
        (Cipher::<aws_lc::AwsLc>::new(&[9; 32]), Cipher::<RustCrypto>::new(&[9; 32]));
    for length in (0..=1100).chain([4095, 4096, 16_384, 65_518]) {
        let plain: Vec<u8> = (0..length).map(|at: usize| u8::try_from(at % 251).unwrap()).collect();
        let (mut a, mut b) = (plain.clone(), plain);
        assert_eq!(ours.seal(b"", &mut a), default.seal(b"", &mut b), "{length} bytes");
        assert_eq!(a, b, "{length} bytes");
    }
}
