//! What people and scripts see of a decision.
use serde_json::json;

use super::*;

fn demo() -> Mesh {
    let mut mesh = Mesh::new(&card(|c| c.needs.gpu_vram = Some(8 * GIB)), &["tower", "attic"]);
    mesh.advert("tower", |a| a.gpus = vec![gpu(24 * GIB)]);
    mesh.ask.argument_bytes = 500_000;
    mesh
}

#[test]
fn the_sentence() {
    assert_eq!(
        demo().decide().sentence(),
        "tower: 212 ms expected (rtt 2, wait 0, transfer 10, exec 200) on GPU 0 (GPU, 24.0 GiB of 24.0 GiB free, read 0 s ago); attic has no GPU (no_gpu); \
         pi has no tool image_render (no_tool)"
    );
    let mut mesh = demo();
    mesh.advert("tower", |a| a.gpus.clear());
    assert_eq!(
        mesh.decide().sentence(),
        "no node can run image_render; attic has no GPU (no_gpu); pi has no tool image_render (no_tool); \
         tower has no GPU (no_gpu)"
    );
}

#[test]
fn the_json_of_place() {
    assert_eq!(
        demo().decide().to_place_json(),
        json!({
            "decision_id": "dec-0707070707070707",
            "tool": "image_render",
            "chosen": "tower",
            "candidates": [{"node": "tower", "cost_ms": 212.0, "terms":
                {"rtt": 2.0, "wait": 0.0, "transfer": 10.0, "exec": 200.0, "cold": 0.0, "risk": 0.0},
                "gpu": "GPU 0 (GPU, 24.0 GiB of 24.0 GiB free, read 0 s ago)"}],
            "filtered": [
                {"node": "attic", "reason": "no_gpu", "detail": "has no GPU"},
                {"node": "pi", "reason": "no_tool", "detail": "has no tool image_render"}],
            "sentence": demo().decide().sentence(),
        })
    );
}

#[test]
fn the_json_of_why_adds_what_happened() {
    let mesh = demo();
    let earlier = {
        let mut d = mesh.decide();
        d.refused(Refusal {
            node: mesh.id("attic"),
            name: NodeName::parse("attic").unwrap(),
            reason: "busy".into(),
            detail: "all slots and the queue are full".into(),
        });
        d
    };
    let mut decision = mesh.decide().after(&earlier);
    let on = decision.chosen.clone().unwrap();
    decision.started(&on);
    decision.took_ms = Some(230);
    let json = decision.to_why_json();
    assert_eq!(json["chosen"], "tower");
    assert_eq!(json["step"], "run-0101010101010101/s001");
    assert_eq!(
        json["refusals"],
        json!([{"node": "attic", "reason": "busy", "detail": "all slots and the queue are full"}])
    );
    assert_eq!(
        (&json["ran_on"], &json["predicted_ms"], &json["took_ms"]),
        (&json!("tower"), &json!(212.0), &json!(230))
    );
    assert!(decision.sentence().contains("; attic refused (busy);"), "{}", decision.sentence());
}

#[test]
fn a_large_mesh_still_gives_one_line() {
    let names: Vec<String> = (0..60).map(|n| format!("node-{n:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let sentence = Mesh::new(&card(|_| {}), &names).decide().sentence();
    assert!(sentence.ends_with("; 52 more"), "{sentence}");
    assert!(sentence.len() < 400);
}
