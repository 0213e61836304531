use super::*;
use crate::{
    id::RotationId,
    trust::{Role, fixtures},
};

fn sync(revocations: usize, members: usize) -> Sync {
    let member = |n: usize| MemberAddress {
        node: NodeId::from_bytes([n as u8; 32]),
        name: NodeName::parse("tower").unwrap(),
        addresses: vec!["192.168.1.20:9400".into()],
    };
    Sync {
        advert: vec![7; 100],
        members: (0..members).map(member).collect(),
        revocations: vec![RevocationId::from_bytes([3; 32]); revocations],
        secret: SecretStamp { generation: 2, id: RotationId::from_bytes([4; 32]) },
    }
}

/// Frozen: the first byte says which question or answer it is.
#[test]
fn golden_bytes() {
    let hex = |bytes: Vec<u8>| data_encoding::HEXLOWER.encode(&bytes);
    let small = Sync { advert: vec![7; 2], ..sync(1, 1) };
    let body = format!(
        "020707{}{}{}",
        MEMBER,
        format_args!("01{}", "03".repeat(32)),
        format_args!("02{}", "04".repeat(32))
    );
    assert_eq!(hex(SyncRequest::State(small.clone()).to_bytes().unwrap()), format!("00{body}"));
    assert_eq!(hex(SyncReply::State(small).to_bytes().unwrap()), format!("00{body}"));
    let id = RevocationId::from_bytes([3; 32]);
    let asked = SyncRequest::Revocations(vec![id]).to_bytes().unwrap();
    assert_eq!(hex(asked), format!("0101{}", "03".repeat(32)));
    assert_eq!(hex(SyncRequest::Revoked(vec![5, 6]).to_bytes().unwrap()), "02020506");
    assert_eq!(hex(SyncRequest::Secret.to_bytes().unwrap()), "03");
    assert_eq!(hex(SyncReply::Revocations(vec![vec![5], vec![]]).to_bytes().unwrap()), "0102010500");
    assert_eq!(hex(SyncReply::Secret(Some(vec![5])).to_bytes().unwrap()), "02010105");
    assert_eq!(hex(SyncReply::Secret(None).to_bytes().unwrap()), "0200");
    assert_eq!(hex(SyncReply::Done.to_bytes().unwrap()), "03");
    assert_eq!(hex(SyncReply::Refused.to_bytes().unwrap()), "04");
    let chain = fixtures::chain(3, Role::Worker);
    let bytes = SyncRequest::Certificate(Box::new(chain.clone())).to_bytes().unwrap();
    assert_eq!((bytes[0], &bytes[1..]), (4, &chain.to_bytes().unwrap()[..]));
    let renewal = Renewal { chain: chain.clone(), name: Some(NodeName::parse("loft").unwrap()) };
    let asked = SyncRequest::Renew(Box::new(renewal)).to_bytes().unwrap();
    assert_eq!(asked, [&[5][..], &chain.to_bytes().unwrap(), b"\x01\x04loft"].concat());
    let told = SyncRequest::Shown(Box::new(chain.clone())).to_bytes().unwrap();
    assert_eq!(told, [&[6][..], &chain.to_bytes().unwrap()].concat());
    assert_eq!(hex(SyncRequest::Leaving.to_bytes().unwrap()), "07");
    let given = SyncReply::Renewed(Box::new(chain.clone())).to_bytes().unwrap();
    assert_eq!(given, [&[5][..], &chain.to_bytes().unwrap()].concat());
    let refused = SyncReply::NotRenewed { why: RenewRefusal::Old, detail: "x".into() };
    assert_eq!(hex(refused.to_bytes().unwrap()), "06020178");
    let wordy = SyncReply::NotRenewed { why: RenewRefusal::Old, detail: "x".repeat(limits::TEXT_BYTES + 1) };
    assert!(SyncReply::from_bytes(&wordy.to_bytes().unwrap()).is_err());
}

const MEMBER: &str = "01000000000000000000000000000000000000000000000000000000000000000005746f77657201113139322e3136382e312e32303a39343030";

#[test]
fn the_fullest_fits_and_more_is_refused() {
    let full = SyncRequest::State(sync(limits::REVOCATIONS, 200));
    assert_eq!(SyncRequest::from_bytes(&full.to_bytes().unwrap()).unwrap(), full);
    for over in [sync(limits::REVOCATIONS + 1, 0), sync(0, limits::SYNC_MEMBERS + 1)] {
        let bytes = SyncRequest::State(over.clone()).to_bytes().unwrap();
        assert_eq!(SyncRequest::from_bytes(&bytes), Err(CodecError::Malformed));
        let bytes = SyncReply::State(over).to_bytes().unwrap();
        assert_eq!(SyncReply::from_bytes(&bytes), Err(CodecError::Malformed));
    }
    let mut long = sync(0, 1);
    long.members[0].addresses = vec!["x".repeat(limits::ADDRESS_BYTES + 1)];
    let bytes = SyncRequest::State(long).to_bytes().unwrap();
    assert_eq!(SyncRequest::from_bytes(&bytes), Err(CodecError::Malformed));
    let statement = vec![0; limits::STATEMENT_BYTES + 1];
    for over in [
        SyncReply::Secret(Some(statement.clone())),
        SyncReply::Revocations(vec![statement.clone()]),
        SyncReply::Revocations(vec![vec![]; limits::REVOCATIONS_PER_REPLY + 1]),
    ] {
        assert_eq!(SyncReply::from_bytes(&over.to_bytes().unwrap()), Err(CodecError::Malformed));
    }
    assert!(SyncRequest::from_bytes(&SyncRequest::Revoked(statement).to_bytes().unwrap()).is_err());
    let most = SyncReply::Revocations(vec![vec![1; limits::STATEMENT_BYTES]; limits::REVOCATIONS_PER_REPLY]);
    assert_eq!(SyncReply::from_bytes(&most.to_bytes().unwrap()).unwrap(), most);
}
