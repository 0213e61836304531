//! PROTOCOL 5.6: a member that says something in another's name, in each way in which adverts travel.
use futures::AsyncWriteExt as _;
use libp2p::{StreamProtocol, identity::Keypair};
use octomesh_protocol::{
    advert::{Advert, AdvertError, LoadState},
    card::SandboxLevel,
    id::ToolSetHash,
    trust::NodeIdentity,
};

use super::*;
use crate::net::{behaviour::ADVERT_TOPIC, handle::peer_id};

const EVIL: u8 = 2;

fn advert_of(node: NodeId) -> Vec<u8> {
    let advert = Advert {
        node,
        incarnation: u64::MAX,
        seq: 1,
        load: LoadState::default(),
        memory_total: 1,
        gpus: vec![],
        models: vec![],
        tool_set: ToolSetHash::from_bytes([2; 32]),
        speed_percent: 100,
        sandbox: SandboxLevel::None,
        region: String::new(),
        tags: vec![],
        version: String::new(),
        circumstances: Default::default(),
    };
    advert.to_bytes().unwrap()
}

/// A field of a protocol buffer that holds bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(bytes.len()), bytes].concat()
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// What gossipsub sends: a message `from` somebody, signed by `signer`, whose public key goes along.
fn gossip(from: NodeId, signer: &Keypair, data: &[u8], number: u64) -> Vec<u8> {
    let message = [
        field(1, &from.to_peer_id_bytes()),
        field(2, data),
        field(3, &number.to_be_bytes()),
        field(4, ADVERT_TOPIC.as_bytes()),
    ]
    .concat();
    let signature = signer.sign(&[&b"libp2p-pubsub:"[..], &message].concat()).unwrap();
    let signed = [message, field(5, &signature), field(6, &signer.public().encode_protobuf())].concat();
    let rpc = field(2, &signed);
    [varint(rpc.len()), rpc].concat()
}

#[tokio::test]
async fn an_advert_in_anothers_name() {
    let (mut evil, mut victim) = (peer(EVIL, "memory:0").await, peer(3, "memory:0").await);
    let honest = peer(4, "memory:0").await.node;
    evil.connect(&mut victim).await;
    let signer = Keypair::ed25519_from_bytes([EVIL; 32]).unwrap();
    let control = evil.handle.control.clone();
    let gossipsub = StreamProtocol::new("/meshsub/1.1.0");
    let mut stream = control.open(peer_id(victim.node).unwrap(), gossipsub).await.unwrap();
    // From the other one, with a signature of one's own; then in one's own name, and what it says is the other's.
    for message in [
        gossip(honest, &signer, b"forged", 1),
        gossip(evil.node, &signer, &advert_of(honest), 2),
        gossip(evil.node, &signer, b"last", 3),
    ] {
        stream.write_all(&message).await.unwrap();
        stream.flush().await.unwrap();
    }
    let mut heard = Vec::new();
    while heard.last().is_none_or(|(_, bytes): &(NodeId, Vec<u8>)| bytes != b"last") {
        let next = victim.wait(|e| match e {
            NetEvent::Advert { origin, bytes } => Some((origin, bytes)),
            _ => None,
        });
        // The evil one's driver has events, too.
        heard.push(tokio::select! {
            next = next => next,
            never = evil.wait(|_| None) => never,
        });
    }
    assert_eq!(heard.len(), 2, "the forged one is not heard at all: {heard:?}");
    let (origin, bytes) = &heard[0];
    assert_eq!(*origin, evil.node);
    assert_eq!(Advert::from_bytes(bytes, *origin), Err(AdvertError::Impersonation));

    // In an exchange: its origin is who is at the other end.
    let exchanged = evil.handle.sync(victim.node, advert_of(honest));
    let answer = victim.wait(|e| match e {
        NetEvent::Sync { node, bytes, reply } => {
            reply.send(vec![]).ok();
            Some((node, bytes))
        }
        _ => None,
    });
    let (_, (node, bytes)) = tokio::join!(exchanged, answer);
    assert_eq!(node, evil.node);
    assert_eq!(Advert::from_bytes(&bytes, node), Err(AdvertError::Impersonation));
}

/// Anybody can make keys and sign with them: what such a one says is heard by the member that it is told to, and goes no further.
#[tokio::test]
async fn an_advert_of_nobodys_is_not_passed_on() {
    let (mut evil, mut relay) = (peer(EVIL, "memory:0").await, peer(3, "memory:0").await);
    let mut far = peer(4, "memory:0").await;
    evil.connect(&mut relay).await;
    relay.connect(&mut far).await;
    let invented = NodeIdentity::from_seed([9; 64]).node_id();
    let signers = [(invented, [9; 32]), (evil.node, [EVIL; 32])];
    let signers = signers.map(|(node, seed)| (node, Keypair::ed25519_from_bytes(seed).unwrap()));
    let control = evil.handle.control.clone();
    let gossipsub = StreamProtocol::new("/meshsub/1.1.0");
    let mut stream = control.open(peer_id(relay.node).unwrap(), gossipsub).await.unwrap();
    let mut number = 0;
    let mut again = tokio::time::interval(std::time::Duration::from_millis(50));
    let (mut told, mut heard) = (Vec::new(), Vec::new());
    let all = async {
        // The invented one is said first each time, and often enough for the gossip mesh to have formed.
        while heard.len() < 5 {
            tokio::select! {
                _ = again.tick() => for (node, signer) in &signers {
                    number += 1;
                    stream.write_all(&gossip(*node, signer, &[1; 20], number)).await.unwrap();
                    stream.flush().await.unwrap();
                },
                event = relay.events.recv() => if let Some(NetEvent::Advert { origin, .. }) = event {
                    told.push(origin);
                },
                event = far.events.recv() => if let Some(NetEvent::Advert { origin, .. }) = event {
                    heard.push(origin);
                },
                Some(_) = evil.events.recv() => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, all).await.expect("what a member says is passed on");
    assert!(told.contains(&invented), "it came that far");
    assert!(heard.iter().all(|origin| *origin == evil.node), "{heard:?}");
}
