use super::*;

fn event(name: &str, operator: &str, provider: &str, index: u32) -> String {
    format!(
        r#"{{"cat":"Node","name":"{name}","args":{{"op_name":"{operator}","provider":"{provider}","node_index":"{index}"}}}}"#
    )
}

#[test]
fn nodes_are_counted_once_by_operator_and_provider() {
    let events = [
        r#"{"cat":"Session","name":"model_run","args":{}}"#.to_string(),
        event("a_kernel_time", "Conv", "CUDAExecutionProvider", 0),
        // The second run of the same node, and what older versions write around it.
        event("a_kernel_time", "Conv", "CUDAExecutionProvider", 0),
        event("a_fence_before", "Conv", "CUDAExecutionProvider", 0),
        // Two nodes without a name of their own.
        event("_kernel_time", "Conv", "CUDAExecutionProvider", 1),
        event("_kernel_time", "Relu", "CPUExecutionProvider", 2),
    ];
    let placement = Placement::parse(format!("[{}]", events.join(",")).as_bytes()).unwrap();
    assert_eq!(placement.nodes_on("CUDAExecutionProvider"), 2);
    assert_eq!(placement.nodes_on("CPUExecutionProvider"), 1);
    assert_eq!(placement.nodes_on("TensorrtExecutionProvider"), 0);
    assert_eq!(placement.providers().into_values().sum::<usize>(), 3);
    let conv = &placement.operators()[0];
    assert_eq!((conv.operator.as_str(), conv.count), ("Conv", 2));
    assert_eq!(conv.implementation, "ort:CUDAExecutionProvider");
}

#[test]
fn a_profile_without_nodes_is_an_error() {
    for bad in ["", "[", "{}", "[]", r#"[{"cat":"Session","name":"x"}]"#, "\u{0}"] {
        assert!(Placement::parse(bad.as_bytes()).is_err(), "{bad:?}");
    }
}

#[test]
fn nodes_in_half_precision_are_counted_without_conversions() {
    let typed = |operator: &str, input: &str, output: &str, index: u32| {
        format!(
            r#"{{"cat":"Node","name":"n_kernel_time","args":{{"op_name":"{operator}","provider":"p","node_index":"{index}","input_type_shape":[{{"float":[1]}},{{"{input}":[1,2]}}],"output_type_shape":[{{"{output}":[1,2]}}]}}}}"#
        )
    };
    let events = [
        typed("Cast", "float", "float16", 0),
        typed("Conv", "float16", "float16", 1),
        typed("Conv", "float", "float", 2),
        typed("Flatten", "float", "float16", 3),
        // Twice the same node.
        typed("Flatten", "float", "float16", 3),
    ];
    let placement = Placement::parse(format!("[{}]", events.join(",")).as_bytes()).unwrap();
    assert_eq!((placement.half_nodes(), placement.all_nodes()), (2, 4));
}
