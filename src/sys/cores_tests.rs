use super::*;

#[test]
fn cores_are_told_apart_by_their_id_registers() {
    let root = std::env::temp_dir().join(format!("corelane-order-{}", std::process::id()));
    // A little core and a big one of an RK3588, a Raspberry Pi 3's, one of another maker, none, and no number.
    let cores = [
        "0x00000000412fd050\n",
        "0x00000000414fd0b0\n",
        "0x00000000410fd034\n",
        "0x00000000510fd034\n",
        "",
        "none\n",
    ];
    for (core, midr) in cores.iter().enumerate().filter(|(_, midr)| !midr.is_empty()) {
        let dir = root.join(format!("sys/devices/system/cpu/cpu{core}/regs/identification"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("midr_el1"), midr).unwrap();
    }
    let all = |cores: &[u16]| {
        in_order(&root, &cores.iter().map(|&core| CoreId(core)).collect::<Vec<_>>())
    };
    assert!(all(&[0]) && all(&[2]) && all(&[0, 2]));
    for others in [&[1][..], &[0, 1], &[3], &[4], &[5], &[]] {
        assert!(!all(others), "{others:?}");
    }
    std::fs::remove_dir_all(&root).unwrap();
}
