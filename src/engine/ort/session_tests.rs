use super::*;

#[test]
fn the_node_that_a_message_names_is_found() {
    for (said, node) in [
        (
            "an invalid model. In Node, (\"a_0\", Foo, \"\", -1) : (\"x\": tensor(float),) -> ",
            Some("a_0"),
        ),
        ("Could not find an implementation for Erf(13) node with name 'b_0'", Some("b_0")),
        ("parameter (x) of operator (Relu) in node (c_0) is invalid.", Some("c_0")),
        ("Non-zero status code returned while running Add node. Name:'d_0' Status", Some("d_0")),
        ("In Node, (\"\", Foo, ", None),
        ("Protobuf parsing failed.", None),
    ] {
        assert_eq!(named_node(said), node, "{said}");
    }
}

#[test]
fn providers_are_asked_for_what_the_settings_say() {
    let plain = OrtSettings { device: 1, ..OrtSettings::default() };
    let limited = OrtSettings { gpu_memory_bytes_max: Some(4096), ..plain.clone() };
    let [graph, memory] = ["enable_cuda_graph", "gpu_mem_limit"];
    let [trt_graph, trt_memory] = ["trt_cuda_graph_enable", "trt_max_workspace_size"];
    for (shown, graph, memory) in [
        (format!("{:?}", cuda(&limited, true)), graph, memory),
        (format!("{:?}", tensorrt(&limited, true)), trt_graph, trt_memory),
    ] {
        // As the crate shows its options.
        for (option, value) in [("device_id", "1"), (graph, "true"), (memory, "4096")] {
            assert!(shown.contains(&format!("{option:?}: {value:?}")), "{shown}: no {option}");
        }
    }
    for shown in [format!("{:?}", cuda(&plain, false)), format!("{:?}", tensorrt(&plain, false))] {
        assert!(shown.contains("{\"device_id\": \"1\"}"), "{shown}: no more than the device");
    }
}

#[test]
fn memory_that_can_not_be_had_is_an_error() {
    let error = Buffer::new(isize::MAX as usize / 2, None).err().expect("nobody has so much");
    assert_eq!(engine_error("a tensor", &error).kind(), EngineErrorKind::Limit, "{error}");
}
