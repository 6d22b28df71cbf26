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
