use super::*;
use crate::engine::ort::settings::parse_providers;

fn settings(providers: &[&str], cuda_graph: bool) -> OrtSettings {
    let list: Vec<String> = providers.iter().map(|p| p.to_string()).collect();
    OrtSettings { providers: parse_providers(&list).unwrap(), cuda_graph, ..OrtSettings::default() }
}

#[test]
fn graphs_need_a_gpu_in_the_list() {
    for list in [&["cuda"][..], &["cuda:preferred", "cpu"], &["tensorrt", "cpu"]] {
        check(&settings(list, true)).unwrap();
    }
    check(&settings(&["cpu"], false)).unwrap();
    let said = check(&settings(&["cpu"], true)).unwrap_err().to_string();
    assert!(said.contains("but cpu computes on no GPU: put cuda or tensorrt"), "{said}");
}

#[test]
fn a_library_that_would_replay_one_graph_for_every_size_is_refused() {
    let version = |minor| Version { major: 1, minor, patch: 3 };
    check_sizes(Provider::Cuda, version(18), &[1, 2, 4]).unwrap();
    check_sizes(Provider::Cuda, version(17), &[1]).unwrap();
    check_sizes(Provider::TensorRt, version(32), &[1]).unwrap();
    let said = check_sizes(Provider::Cuda, version(17), &[1, 8]).unwrap_err().to_string();
    assert!(said.contains("sizes [1, 8], but ONNX Runtime 1.17.3 keeps"), "{said}");
    assert!(said.contains("from ONNX Runtime 1.18 on"), "{said}");
    let said = check_sizes(Provider::TensorRt, version(32), &[1, 2]).unwrap_err().to_string();
    assert!(said.contains("but TensorRT keeps a graph for one size"), "{said}");
}

#[test]
fn a_refusal_says_who_runs_what_and_keeps_its_cause() {
    let source = EngineError::new(EngineErrorKind::Internal, "not wholly there");
    let got = "12 nodes on cuda, 2 nodes on cpu".to_string();
    let error: EngineError = GraphError::Refused { provider: Provider::Cuda, got, source }.into();
    assert_eq!(error.kind(), EngineErrorKind::Backend);
    let said = error.to_string();
    assert!(said.contains("2 nodes on cpu): not wholly there;"), "{said}");
    let graph = std::error::Error::source(&error).unwrap();
    assert_eq!(graph.source().unwrap().to_string(), "not wholly there");
}
