//! Cards as a driver reports them, here a library of our own making: which one a step gets, what happens when the driver hangs, and a
//! machine that its owner keeps.
use std::{
    fs,
    net::UdpSocket,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use octomesh_tests::{
    Machine, Mesh,
    machine::free_port,
    namespace::Lab,
    wait::{PATIENCE, wait, wait_within, when},
};
use serde_json::Value;

const GIB: u64 = 1 << 30;

/// The library, and what the kernel shows: nothing.
struct Driver(tempfile::TempDir);

impl Driver {
    fn new(flags: &[&str]) -> Self {
        let driver = Self(tempfile::tempdir().unwrap());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../node/src/load/nvml_stub.c");
        let control = format!("-DCONTROL=\"{}\"", driver.0.path().join("control").display());
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", &control])
            .args(flags)
            .arg("-o")
            .arg(driver.library())
            .arg(source)
            .status()
            .unwrap();
        assert!(built.success());
        fs::create_dir(driver.sysfs()).unwrap();
        driver
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("libnvidia-ml.so.1")
    }

    fn sysfs(&self) -> PathBuf {
        self.0.path().join("sys")
    }

    fn say(&self, lines: &str) {
        let new = self.0.path().join("control.new");
        fs::write(&new, lines).unwrap();
        fs::rename(new, self.0.path().join("control")).unwrap();
    }

    fn configuration(&self) -> String {
        let (library, sysfs) = (self.library(), self.sysfs());
        format!("[hardware]\nnvml = \"{}\"\nsysfs = \"{}\"\n", library.display(), sysfs.display())
    }
}

const NO_DRIVER: &str = "[hardware]\nprobe = false\n";
/// Says which card it was given, and keeps it for as long as it is told.
const RENDER: &str = "read arguments
sleep \"$(echo \"$arguments\" | sed 's/[^0-9]//g')\"
printf '{\"gpu\": \"%s\", \"cuda\": \"%s\", \"order\": \"%s\"}' \"$OCTOMESH_GPU\" \"$CUDA_VISIBLE_DEVICES\" \"$CUDA_DEVICE_ORDER\"";
const RENDER_CARD: &str = "effect = \"pure\"\n[needs]\ngpu_vram = \"12GiB\"\n[input_schema]\ntype = \"object\"\nproperties.seconds.type = \"integer\"";

fn node<'a>(list: &'a Value, name: &str) -> &'a Value {
    list["nodes"].as_array().unwrap().iter().find(|n| n["name"] == name).unwrap()
}

fn filtered<'a>(decision: &'a Value, name: &str) -> Option<&'a Value> {
    decision["filtered"].as_array().unwrap().iter().find(|f| f["node"] == name)
}

/// Also where it can run nowhere, which is an exit code of its own.
fn placed(machine: &Machine, call: &[&str]) -> Value {
    machine.run(&[&["--json", "place"], call].concat()).json()
}

#[test]
fn a_step_goes_to_the_card_that_fits_and_is_told_which() {
    let driver = Driver::new(&[]);
    driver.say("used0 1\n");
    let mesh = Mesh::up(&["pi", "tower"], |machine| {
        if machine.name == "tower" {
            machine.configure(&driver.configuration());
            machine.tool("render", RENDER_CARD, RENDER);
        } else {
            machine.configure(NO_DRIVER);
        }
    });
    let (pi, tower) = (&mesh["pi"], &mesh["tower"]);
    let free = |machine: &Machine| {
        let nodes = machine.json(&["nodes"]);
        node(&nodes, "tower")["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .map(|g| g["vram_free"].clone())
            .collect::<Vec<_>>()
    };
    wait("pi knows both cards", || {
        let seen = free(pi);
        when(seen == [Value::from(23 * GIB), Value::from(8 * GIB)], format!("{seen:?}"))
    });
    let place = placed(pi, &["render", "seconds=0"]);
    let gpu = place["candidates"][0]["gpu"].as_str().unwrap();
    assert!(gpu.starts_with("GPU 0 (Stub 24, 23.0 GiB of 24.0 GiB free, read "), "{gpu}");
    let call = pi.json(&["call", "render", "seconds=0"]);
    let told = &call["output"];
    assert_eq!(
        (&told["gpu"], &told["cuda"], &told["order"]),
        (&"0".into(), &"GPU-0".into(), &"PCI_BUS_ID".into())
    );

    // One step holds 12 of 23 GiB: there is no room for another on that card, and the other card is too small for it.
    let mut holding = pi.start(&["--json", "call", "render", "seconds=8"]);
    wait("the card is reserved", || {
        let gpus = tower.json(&["status"])["gpus"].clone();
        when(gpus[0]["reserved"] == 12 * GIB && gpus[1]["reserved"] == 0, gpus)
    });
    let second = tower.run(&["--json", "call", "render", "seconds=0"]);
    assert_eq!(second.code, 4, "{}{}", second.out, second.err);
    assert!(second.out.contains("on one card"), "{}", second.out);
    assert_eq!(holding.wait(PATIENCE).code, 0);
    wait("the card is given back", || {
        let gpus = tower.json(&["status"])["gpus"].clone();
        when(gpus[0]["reserved"] == 0, gpus)
    });

    // The owner's own program takes the large card.
    driver.say("used0 20\n");
    wait_within(Duration::from_secs(30), "pi knows that it is taken", || {
        let place = placed(pi, &["render", "seconds=0"]);
        when(filtered(&place, "tower").is_some_and(|f| f["reason"] == "vram"), &place)
    });

    // The driver hangs: what it said last grows old, and is then not believed.
    driver.say("hang_memory 1\n");
    wait_within(Duration::from_secs(30), "nobody knows what is free", || {
        let status = tower.json(&["status"]);
        let unknown = status["gpus"]
            .as_array()
            .unwrap()
            .iter()
            .all(|g| g["vram_free"].is_null() && g["age_ms"].is_null());
        let said = status["gpus_absent"].to_string().contains("\"hung\"");
        when(unknown && said, &status["gpus_absent"])
    });
    let refused = tower.run(&["--json", "call", "render", "seconds=0"]);
    assert_eq!(refused.code, 4, "{}", refused.out);
    let doctor = tower.run(&["doctor"]);
    assert!(doctor.out.contains("has not answered for"), "{}", doctor.out);
    driver.say("used0 2\n");
    wait_within(Duration::from_secs(30), "it answers again", || {
        let seen = free(pi);
        when(seen == [Value::from(22 * GIB), Value::from(8 * GIB)], format!("{seen:?}"))
    });
}

#[test]
fn a_node_starts_whatever_its_driver_does() {
    let mut mesh = Mesh::furnished(&["pi"], |_| {});
    let pi = &mut mesh["pi"];
    pi.init();
    let mut start = |configuration: &str| {
        pi.configure(configuration);
        let begin = Instant::now();
        pi.up();
        let took = begin.elapsed();
        let status = pi.json(&["status"]);
        pi.stop();
        (took, status)
    };
    let (usual, _) = start(NO_DRIVER);
    let healthy = Driver::new(&[]);
    let missing = Driver::new(&["-DNO_MEMORY"]);
    for (driver, says, reason) in [
        (&healthy, "", None),
        (&healthy, "init 9\n", Some("no_driver")),
        (&healthy, "init 999\n", Some("driver")),
        (&healthy, "hang_init 1\n", None),
        (&healthy, "hang_memory 1\n", None),
        (&missing, "", Some("missing_symbol")),
    ] {
        driver.say(says);
        let (took, status) = start(&driver.configuration());
        assert!(took < usual + Duration::from_secs(2), "{says:?}: {took:?}, {usual:?} without a driver");
        if let Some(reason) = reason {
            assert_eq!(status["gpus_absent"][0]["reason"], reason, "{says:?}: {}", status["gpus_absent"]);
        }
        assert_eq!(
            status["gpus"].as_array().unwrap().len(),
            if says.is_empty() && reason.is_none() { 2 } else { 0 }
        );
        driver.say("");
    }
}

#[test]
fn a_machine_that_its_owner_keeps_takes_no_steps_of_others_and_tells_how_it_is_woken() {
    let kernel = tempfile::tempdir().unwrap();
    let cable = kernel.path().join("class/net/eth7");
    fs::create_dir_all(cable.join("device")).unwrap();
    fs::write(cable.join("address"), "02:00:00:00:00:07\n").unwrap();
    let mesh = Mesh::up(&["pi", "tower"], |machine| {
        if machine.name == "tower" {
            let sysfs = kernel.path().display();
            machine.configure(&format!(
                "[hardware]\nprobe = false\nsysfs = \"{sysfs}\"\n[yield]\nquiet_hours = [\"00:00-24:00\"]\n"
            ));
            machine.tool("greet", "effect = \"pure\"", "echo '{\"greeting\": \"hello\"}'");
        } else {
            machine.configure(NO_DRIVER);
        }
    });
    let (pi, tower) = (&mesh["pi"], &mesh["tower"]);
    wait("pi knows that tower is kept", || {
        let place = placed(pi, &["greet"]);
        when(filtered(&place, "tower").is_some_and(|f| f["reason"] == "yields"), &place)
    });
    assert_eq!(pi.run(&["--json", "call", "greet"]).code, 4);
    assert_eq!(tower.json(&["call", "greet"])["output"]["greeting"], "hello", "its owner's own call runs");
    let nodes = pi.json(&["nodes"]);
    assert_eq!(node(&nodes, "tower")["yields"], "quiet_hours");
    assert_eq!(node(&nodes, "tower")["macs"], serde_json::json!(["02:00:00:00:00:07"]));
    assert_eq!(tower.json(&["status"])["yields"], "quiet_hours");
    wait_within(Duration::from_secs(30), "the address is kept", || {
        let kept = fs::read_to_string(pi.home.join("wake.json")).unwrap_or_default();
        when(kept.contains("02:00:00:00:00:07"), kept)
    });
    let none = tower.run(&["--json", "wake", "pi"]);
    // Where this machine has a cable, pi has told it.
    assert!(none.code == 0 || none.error().contains("no hardware address"), "{}", none.out);
}

/// The packet is seen where the sleeping machine listens: on its own cable, after its node is gone.
#[test]
fn a_machine_that_is_off_is_called_on_its_cable() {
    let lab = match Lab::new(2) {
        Ok(lab) => lab,
        Err(why) if std::env::var_os("OCTOMESH_REQUIRE_NETNS").is_some_and(|v| v == "1") => panic!("{why}"),
        Err(why) => {
            println!("skipped, this machine makes no network namespaces (it takes root and `ip`): {why}");
            return;
        }
    };
    let kernel = tempfile::tempdir().unwrap();
    let cable = kernel.path().join("class/net/eth0");
    fs::create_dir_all(cable.join("device")).unwrap();
    fs::write(cable.join("address"), "02:00:00:00:00:07\n").unwrap();
    let folder = tempfile::Builder::new().prefix("octomesh-lab-").tempdir().unwrap();
    let names = ["pi", "tower"];
    let machines: Vec<Machine> = (0..2)
        .map(|at| Machine::at(folder.path(), names[at], &lab.address(at), free_port(), &lab.prefix(at)))
        .collect();
    machines[1].configure(&format!("[hardware]\nprobe = false\nsysfs = \"{}\"", kernel.path().display()));
    machines[1].tool("greet", "effect = \"pure\"", "echo hello");
    machines[0].configure("[hardware]\nprobe = false\n[wake]\nauto = true");
    let mut mesh = Mesh::of(folder, machines);
    mesh.start();
    mesh["pi"].wait_for_tool("greet", "tower");
    wait_within(Duration::from_secs(30), "the address is kept", || {
        let kept = fs::read_to_string(mesh["pi"].home.join("wake.json")).unwrap_or_default();
        when(kept.contains("02:00:00:00:00:07"), kept)
    });
    mesh["tower"].kill();
    wait("tower is gone", || {
        let nodes = mesh["pi"].json(&["nodes"]);
        when(node(&nodes, "tower")["state"] == "down", &nodes)
    });
    let ear = lab.inside(1, || UdpSocket::bind("0.0.0.0:9").unwrap());
    ear.set_read_timeout(Some(PATIENCE)).unwrap();
    let heard = || {
        let mut packet = [0; 200];
        let (length, from) = ear.recv_from(&mut packet).unwrap();
        assert_eq!((length, from.ip().to_string()), (102, lab.address(0)));
        assert_eq!(packet[..6], [0xff; 6]);
        assert!(packet[6..102].chunks(6).all(|mac| mac == [2, 0, 0, 0, 0, 7]));
    };
    let woken = mesh["pi"].json(&["wake", "tower"]);
    assert_eq!((&woken["name"], &woken["macs"][0]), (&"tower".into(), &"02:00:00:00:00:07".into()));
    heard();
    ear.set_nonblocking(true).unwrap();
    while ear.recv(&mut [0; 200]).is_ok() {}
    ear.set_nonblocking(false).unwrap();
    // A call that only tower can do wakes it by itself, and waits for it.
    let mut call = mesh["pi"].start(&["--json", "call", "greet"]);
    heard();
    mesh["tower"].up();
    assert_eq!(call.wait(PATIENCE * 2).json()["node"], "tower");
}
