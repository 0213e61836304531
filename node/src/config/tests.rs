use super::*;

fn home_with(file: &str, dot_env: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(path(home.path()), file).unwrap();
    std::fs::write(home.path().join(".env"), dot_env).unwrap();
    home
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

fn load_from(
    file: &str,
    dot_env: &str,
    env: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<Loaded, ConfigErrors> {
    let home = home_with(file, dot_env);
    load(&Sources { home: home.path(), environment: pairs(env), flags: pairs(flags), parallelism: 6 })
}

#[test]
fn defaults() {
    let config = load_from("", "", &[], &[]).unwrap().config;
    assert_eq!(config.listen, ["0.0.0.0:9400".parse().unwrap()]);
    assert!(!config.listen_is_explicit);
    assert_eq!(config.api, "127.0.0.1:9480".parse().unwrap());
    assert_eq!(config.sandbox, ConfinementConfig { uid_base: 64_000, min_level: SandboxLevel::None });
    assert_eq!((config.slots, config.engine.as_str(), config.lazy_tools), (6, "rules", LazyTools::Auto));
}

#[test]
fn a_certificates_lifetime() {
    let of = |text: &str| {
        load_from("", "", &[("OCTOMESH_CERTIFICATE_LIFETIME", text)], &[])
            .map(|loaded| loaded.config.certificate_lifetime_s)
            .map_err(|e| e.to_string())
    };
    assert_eq!(load_from("", "", &[], &[]).unwrap().config.certificate_lifetime_s, 365 * 86_400);
    assert_eq!(of("30d"), Ok(30 * 86_400));
    assert_eq!(of("10s"), Ok(10));
    for (bad, why) in [
        ("9s", "is not between 10s and 3650d"),
        ("3651d", "is not between"),
        ("a year", "is not a time such as 365d"),
        ("99999999999999999999d", "is not a time"),
    ] {
        assert!(of(bad).unwrap_err().contains(why), "{bad}");
    }
}

#[test]
fn a_whole_file() {
    let config = load_from(
        "listen = [\"127.0.0.1:1\", \"[::1]:2\"]\napi = \"http://localhost:7/\"\npeers = \"attic.lan:9400\"\nslots = 3\nregion = \"cellar\"\n\
         tags = [\"gpu\", \"big\", \"gpu\"]\nengine = \"rules\"\nlazy_tools = true\nadvertise = [\"10.0.0.1:9400\"]\nlog = \"octomesh=debug\"\n\
         [sandbox]\nuid_base = 70_000\nmin_level = \"userns+landlock+seccomp\"\n[[gpus]]\nname = \"RTX\"\nvram = \"24GiB\"\n[[gpus]]\nname = \"old\"\nvram = 1_000\n",
        "",
        &[],
        &[],
    )
    .unwrap()
    .config;
    assert!(config.listen_is_explicit);
    assert_eq!(config.listen.len(), 2);
    assert_eq!(config.api.to_string(), "127.0.0.1:7");
    assert_eq!(config.tags, ["big", "gpu"]);
    assert_eq!(config.lazy_tools, LazyTools::On);
    let level = SandboxLevel::UsernsLandlockSeccomp;
    assert_eq!(config.sandbox, ConfinementConfig { uid_base: 70_000, min_level: level });
    assert_eq!(config.gpus[0].vram_bytes, 24 << 30);
    assert_eq!(config.gpus[1].vram_bytes, 1000);
}

#[test]
fn all_errors_at_once_with_line_and_key() {
    let file = "region = \"a\"\nsots = 4\nlisten = [\n  \"0.0.0.0:9400\",\n  \"nonsense\",\n]\nslots = 0\nengine = \"openai:gpt\"\n\
                tags = 7\n[sandbox]\nuid = 4\nuid_base = 0\nmin_level = \"strong\"\n[[gpus]]\nname = \"x\"\nvram = \"lots\"\ncolour = 1\n[[gpus]]\nname = \"y\"\n";
    let errors = load_from(file, "OCTOMESH_SLOT=3\nbroken\n", &[("OCTOMESH_LOG", "=[")], &[("peers", "a:b")]);
    let text = errors.unwrap_err().to_string();
    let expected = [
        "octomesh.toml:2: unknown key `sots` (did you mean `slots`?)",
        "octomesh.toml:5: listen: \"nonsense\" is not ADDR:PORT, for example 0.0.0.0:9400",
        "octomesh.toml:7: slots: 0 is not between 1 and 1024",
        "octomesh.toml:8: engine: there is no engine \"openai:gpt\"; there is: rules",
        "octomesh.toml:9: tags: wants a list of texts, not a number",
        "octomesh.toml:11: unknown key `sandbox.uid` (did you mean `sandbox.uid_base`?)",
        "octomesh.toml:12: sandbox.uid_base: 0 is not between 1000 and 4294967294",
        "octomesh.toml:13: sandbox.min_level: \"strong\" is not one of none, rlimits, landlock+seccomp, \
         userns+landlock+seccomp, bwrap+landlock+seccomp",
        "octomesh.toml:16: gpus: \"lots\" is not a size such as 24GiB",
        "octomesh.toml:17: unknown key `gpus.colour`; there are `name` and `vram`",
        "octomesh.toml:18: gpus.vram: is missing (for example \"24GiB\")",
        ".env:1: unknown key `slot` (did you mean `slots`?)",
        ".env:2: not of the form NAME=value",
        "--peer: peers: \"a:b\" is not HOST:PORT",
    ];
    for line in expected {
        assert!(text.lines().any(|have| have == line), "{line}\nis not in\n{text}");
    }
    assert!(text.lines().any(|have| have.starts_with("OCTOMESH_LOG: log: ")), "{text}");
    assert_eq!(text.lines().count(), expected.len() + 1, "{text}");
}

#[test]
fn several_syntax_errors_are_all_reported() {
    let text = load_from("slots = \nregion = 'x\nnope = 1\n", "", &[], &[]).unwrap_err().to_string();
    assert!(text.contains("octomesh.toml:1: not TOML"), "{text}");
    assert!(text.contains("octomesh.toml:2: not TOML"), "{text}");
    assert!(text.contains("octomesh.toml:3: unknown key `nope`"), "{text}");
}

#[test]
fn flags_beat_environment_beats_dot_env_beats_file() {
    let file = "slots = 1";
    let dot_env =
        "# a comment\nexport OCTOMESH_SLOTS=\"2\" \nOPENAI_API_KEY=x\nOCTOMESH_REGION=attic # where\n";
    let env = [("OCTOMESH_SLOTS", "3"), ("PATH", "/bin")];
    let flags = [("slots", "4")];
    let slots = |dot_env, env: &[_], flags: &[_]| load_from(file, dot_env, env, flags).unwrap();
    assert_eq!(slots("", &[], &[]).config.slots, 1);
    assert_eq!(slots(dot_env, &[], &[]).config.slots, 2);
    assert_eq!(slots(dot_env, &[], &[]).config.region, "attic");
    assert_eq!(slots(dot_env, &env, &[]).config.slots, 3);
    let all = slots(dot_env, &env, &flags);
    assert_eq!(all.config.slots, 4);
    let origin = |key| all.values.iter().find(|v| v.key == key).unwrap().origin.to_string();
    assert_eq!(
        (origin("slots"), origin("region"), origin("api")),
        ("--slots".into(), ".env:4".into(), "default".into())
    );
}

#[test]
fn an_empty_variable_is_not_set_and_a_strange_one_is_a_warning() {
    let loaded =
        load_from("slots = 2", "", &[("OCTOMESH_SLOTS", " "), ("OCTOMESH_SOLTS", "5")], &[]).unwrap();
    assert_eq!(loaded.config.slots, 2);
    assert_eq!(loaded.warnings, ["OCTOMESH_SOLTS: unknown key `solts` (did you mean `slots`?)"]);
}

#[test]
fn lazy_tools_is_parsed_correctly() {
    for (value, expected) in [
        (None, Some(LazyTools::Auto)),
        (Some(""), Some(LazyTools::Auto)),
        (Some("0"), Some(LazyTools::Off)),
        (Some("false"), Some(LazyTools::Off)),
        (Some("1"), Some(LazyTools::On)),
        (Some("TRUE"), Some(LazyTools::On)),
        (Some("auto"), Some(LazyTools::Auto)),
        (Some("garbage"), None),
    ] {
        for name in ["OCTOMESH_LAZY_TOOLS", "OPTIMCLAW_LAZY_TOOLS"] {
            let env: Vec<_> = value.map(|v| (name, v)).into_iter().collect();
            let got = load_from("", "", &env, &[]).ok().map(|l| l.config.lazy_tools);
            assert_eq!(got, expected, "{name}={value:?}");
        }
    }
    let both = [("OCTOMESH_LAZY_TOOLS", "1"), ("OPTIMCLAW_LAZY_TOOLS", "0")];
    assert_eq!(load_from("", "", &both, &[]).unwrap().config.lazy_tools, LazyTools::On);
    let weaker = load_from("lazy_tools = 0", "", &[("OPTIMCLAW_LAZY_TOOLS", "1")], &[]).unwrap();
    assert_eq!(weaker.config.lazy_tools, LazyTools::On);
}

#[test]
fn every_key_has_its_variable() {
    let env = [
        ("OCTOMESH_ADVERTISE", "10.0.0.1:1,10.0.0.2:2"),
        ("OCTOMESH_API", "127.0.0.1:1"),
        ("OCTOMESH_API_TOKEN", "0123456789abcdef"),
        ("OCTOMESH_BLOBS__LIMIT", "1GiB"),
        ("OCTOMESH_CERTIFICATE_LIFETIME", "30d"),
        ("OCTOMESH_ENGINE", "rules"),
        ("OCTOMESH_GPUS", "RTX 4090=24GiB, b=8GiB"),
        ("OCTOMESH_HARDWARE__NVML", "/opt/libnvidia-ml.so.1"),
        ("OCTOMESH_HARDWARE__PROBE", "0"),
        ("OCTOMESH_HARDWARE__SYSFS", "/host/sys"),
        ("OCTOMESH_LAZY_TOOLS", "1"),
        ("OCTOMESH_LISTEN", "127.0.0.1:0, [::1]:0"),
        ("OCTOMESH_LOG", "warn"),
        ("OCTOMESH_MDNS", "0"),
        ("OCTOMESH_MODELS__SERVERS", "127.0.0.1:11434, [::1]:8080"),
        ("OCTOMESH_PEERS", "a:1,[::1]:2"),
        ("OCTOMESH_REGION", "r"),
        ("OCTOMESH_RELAY", "0"),
        ("OCTOMESH_SANDBOX__MIN_LEVEL", "rlimits"),
        ("OCTOMESH_SANDBOX__UID_BASE", "65000"),
        ("OCTOMESH_SLOTS", "2"),
        ("OCTOMESH_TAGS", "b,a"),
        ("OCTOMESH_WAKE__AUTO", "1"),
        ("OCTOMESH_WAKE__OFFER", "0"),
        ("OCTOMESH_YIELD__BATTERY", "1"),
        ("OCTOMESH_YIELD__GPU_BUSY", "30"),
        ("OCTOMESH_YIELD__QUIET_HOURS", "22:00-07:00, 12:00-13:00"),
    ];
    let loaded = load_from("", "", &env, &[]).unwrap();
    assert_eq!(loaded.values.len(), env.len());
    for value in &loaded.values {
        assert_eq!(value.origin, Origin::Environment { name: value.variable.clone() }, "{}", value.key);
        assert!(!value.value.is_empty(), "{}", value.key);
        assert!(!value.value.contains("0123456789abcdef"), "a token is shown");
    }
    assert!(!loaded.config.relay);
    assert_eq!(loaded.config.gpus[0].name, "RTX 4090");
    assert_eq!(loaded.config.yields.quiet_hours.len(), 2);
    assert_eq!(loaded.config.model_servers.len(), 2);
    assert!(
        load_from("[models]\nservers = [\"192.0.2.1:11434\"]", "", &[], &[]).is_err(),
        "not on this machine"
    );
    assert_eq!((loaded.config.yields.gpu_busy, loaded.config.wake.offer), (Some(30), false));
    assert!(!format!("{:?}", loaded.config).contains("0123456789abcdef"));
}

#[test]
fn an_open_api_needs_a_token() {
    let open = [("OCTOMESH_API", "0.0.0.0:9480")];
    let text = load_from("", "", &open, &[]).unwrap_err().to_string();
    assert!(text.starts_with("OCTOMESH_API: api: 0.0.0.0:9480 is reachable"), "{text}");
    assert!(load_from("api_token = \"0123456789abcdef\"", "", &open, &[]).is_ok());
    assert!(load_from("api_token = \"short\"", "", &[], &[]).is_err());
    let home = home_with("api = \"0.0.0.0:1\"", "");
    std::fs::write(home.path().join(TOKEN_FILE), "0123456789abcdef").unwrap();
    assert!(load(&Sources { home: home.path(), environment: vec![], flags: vec![], parallelism: 1 }).is_ok());
}

#[test]
fn sizes() {
    for (text, bytes) in [("24GiB", 24 << 30), ("1 mb", 1_000_000), ("512", 512), ("2KiB", 2048)] {
        assert_eq!(validate::parse_size(text), Ok(bytes));
    }
    for bad in ["", "GiB", "-1GiB", "1.5GiB", "0", "99999999999TiB", "5 apples"] {
        assert!(validate::parse_size(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_client_reads_its_values_from_a_broken_configuration() {
    let home = home_with("nonsense = 1\napi = \"attic:9480\"", "");
    let sources = Sources { home: home.path(), environment: vec![], flags: vec![], parallelism: 1 };
    assert_eq!(client_values(&sources), (Some("attic:9480".to_owned()), None));
}

proptest::proptest! {
    #[test]
    fn no_file_panics(file in ".{0,200}", dot_env in ".{0,80}") {
        let _ = load_from(&file, &dot_env, &[], &[]);
    }
}

#[test]
fn mdns_is_on_unless_switched_off() {
    let mdns = |file: &str, env: &[(&str, &str)]| load_from(file, "", env, &[]).map(|l| l.config.mdns);
    assert!(mdns("", &[]).unwrap());
    for off in ["0", "false", "FALSE"] {
        assert!(!mdns("mdns = true", &[("OCTOMESH_MDNS", off)]).unwrap(), "{off}");
    }
    assert!(!mdns("mdns = false", &[]).unwrap());
    assert!(mdns("mdns = 0", &[("OCTOMESH_MDNS", "1")]).unwrap());
    for bad in ["mdns = 2", "mdns = \"perhaps\"", "mdns = [true]"] {
        let errors = mdns(bad, &[]).unwrap_err();
        assert!(errors.0[0].message.starts_with("mdns: "), "{errors}");
    }
}
