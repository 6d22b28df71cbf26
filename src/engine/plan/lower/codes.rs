//! Steps that make or take codes. Codes of images always lie channels last, others as their axes come.

use super::*;
use crate::engine::kernels::{CodedConv, Codes};

impl Lowering<'_> {
    /// The order in which codes of as many axes as `v` has lie.
    fn codes_order(&self, v: ValueId) -> Vec<usize> {
        match self.shape(v).len() {
            4 => order::CHANNELS_LAST.to_vec(),
            rank => order::identity(rank),
        }
    }

    pub(super) fn coded_conv(
        &mut self,
        node: &Node,
        conv: &Arc<CodedConv>,
    ) -> Result<(), EngineError> {
        let (x, out) = (node.inputs[0], node.outputs[0]);
        let from = self.at(x, &self.codes_order(x))?;
        let batch = self.shape(x)[0];
        let dest = self.define(out, self.codes_order(out));
        let (scratch, flops) = (conv.scratch_len(batch), 2 * conv.params().macs() * batch as u64);
        let kernel = Kernel::CodedConv { conv: conv.clone(), batch };
        self.push(node, kernel, vec![from], dest, scratch, None, flops);
        Ok(())
    }

    pub(super) fn add_codes(&mut self, node: &Node, codes: [Codes; 3]) -> Result<(), EngineError> {
        let out = node.outputs[0];
        let order = self.codes_order(out);
        let sources = vec![self.at(node.inputs[0], &order)?, self.at(node.inputs[1], &order)?];
        let dest = self.define(out, order);
        let count = self.graph.values[out].len();
        let kernel = Kernel::AddCodes { codes, count };
        self.push(node, kernel, sources, dest, 0, None, count as u64);
        Ok(())
    }

    pub(super) fn encode(&mut self, node: &Node, to: Codes) -> Result<(), EngineError> {
        let (x, out) = (node.inputs[0], node.outputs[0]);
        let order = self.codes_order(out);
        let from = self.at(x, &order)?;
        let dest = self.define(out, order);
        let count = self.graph.values[out].len();
        self.push(node, Kernel::Encode { to, count }, vec![from], dest, 0, None, count as u64);
        Ok(())
    }

    pub(super) fn decode(&mut self, node: &Node, codes: Codes) -> Result<(), EngineError> {
        let (x, out) = (node.inputs[0], node.outputs[0]);
        let order = self.codes_order(x);
        let from = self.at(x, &order)?;
        let dest = self.define(out, order);
        let count = self.graph.values[out].len();
        let kernel = Kernel::Decode { from: codes, count };
        self.push(node, kernel, vec![from], dest, 0, None, count as u64);
        Ok(())
    }
}
