//! Small ONNX files made in the test: protobuf, written by hand.

/// One message under construction.
#[derive(Default, Clone)]
pub struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
    /// A whole-number field.
    pub fn int(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }
    /// A text, bytes or message field.
    pub fn bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> Self {
        self.varint(field << 3 | 2);
        self.varint(value.as_ref().len() as u64);
        self.0.extend_from_slice(value.as_ref());
        self
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// An axis of a tensor: open, or of a length.
#[derive(Clone, Copy)]
pub enum Axis {
    Open(&'static str),
    Len(u64),
}

/// A float tensor's name and shape.
pub fn tensor(name: &str, axes: &[Axis]) -> Message {
    typed_tensor(name, 1, axes)
}

/// A tensor's name, element type (as ONNX numbers them) and shape.
pub fn typed_tensor(name: &str, elem_type: u64, axes: &[Axis]) -> Message {
    let mut shape = Message::default();
    for axis in axes {
        let dim = match axis {
            Axis::Open(symbol) => Message::default().bytes(2, symbol),
            Axis::Len(len) => Message::default().int(1, *len),
        };
        shape = shape.bytes(1, dim);
    }
    let tensor_type = Message::default().int(1, elem_type).bytes(2, shape);
    Message::default().bytes(1, name).bytes(2, Message::default().bytes(1, tensor_type))
}

/// A node without attributes; its name is the operator in lower case with `_0`.
pub fn node(operator: &str, inputs: &[&str], output: &str) -> Message {
    let mut node = Message::default();
    for input in inputs {
        node = node.bytes(1, input);
    }
    let name = format!("{}_0", operator.to_lowercase());
    node.bytes(2, output).bytes(3, name).bytes(4, operator)
}

/// Adds an attribute that is a list of whole numbers.
pub fn with_ints(node: Message, name: &str, values: &[u64]) -> Message {
    let mut attribute = Message::default().bytes(1, name);
    for &value in values {
        attribute = attribute.int(8, value);
    }
    node.bytes(5, attribute.int(20, 7))
}

/// Adds an attribute that is a whole number.
pub fn with_int(node: Message, name: &str, value: u64) -> Message {
    node.bytes(5, Message::default().bytes(1, name).int(3, value).int(20, 2))
}

/// A constant of 64-bit integers.
pub fn integers(name: &str, shape: &[u64], values: &[i64]) -> Message {
    constant(name, 7, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

/// A constant of floats.
pub fn floats(name: &str, shape: &[u64], values: &[f32]) -> Message {
    constant(name, 1, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

/// A node that makes a constant of an element type, as ONNX numbers them, from its elements' bytes.
pub fn constant(name: &str, elem_type: u64, shape: &[u64], elements: impl AsRef<[u8]>) -> Message {
    let mut tensor = Message::default();
    for &len in shape {
        tensor = tensor.int(1, len);
    }
    let tensor = tensor.int(2, elem_type).bytes(9, elements);
    let attribute = Message::default().bytes(1, "value").bytes(5, tensor).int(20, 4);
    Message::default().bytes(2, name).bytes(3, name).bytes(4, "Constant").bytes(5, attribute)
}

/// A node without attributes, by its name.
pub fn named(operator: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let mut node = Message::default();
    for input in inputs {
        node = node.bytes(1, input);
    }
    for output in outputs {
        node = node.bytes(2, output);
    }
    node.bytes(3, name).bytes(4, operator)
}

/// A whole file, opset 13.
pub fn model(nodes: &[Message], inputs: &[Message], outputs: &[Message]) -> Vec<u8> {
    file(Some(13), nodes, inputs, outputs)
}

/// A whole file.
pub fn file(
    opset: Option<u64>,
    nodes: &[Message],
    inputs: &[Message],
    outputs: &[Message],
) -> Vec<u8> {
    let mut graph = Message::default();
    for node in nodes {
        graph = graph.bytes(1, node);
    }
    graph = graph.bytes(2, "test");
    for input in inputs {
        graph = graph.bytes(11, input);
    }
    for output in outputs {
        graph = graph.bytes(12, output);
    }
    let file = Message::default().int(1, 8).bytes(7, graph);
    match opset {
        Some(version) => file.bytes(8, Message::default().int(2, version)).0,
        None => file.0,
    }
}

/// Adds an attribute that is a number.
pub fn with_float(node: Message, name: &str, value: f32) -> Message {
    let mut attribute = Message::default().bytes(1, name);
    attribute.varint(2 << 3 | 5);
    attribute.0.extend_from_slice(&value.to_le_bytes());
    node.bytes(5, attribute.int(20, 1))
}
