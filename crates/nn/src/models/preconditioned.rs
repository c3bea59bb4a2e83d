//! A network with a time input `t` as a denoiser with a noise level input `sigma`.
//!
//! A network with more input than output channels is conditioned by concatenation: the noisy image has as many channels as
//! the output, and the others come from the input `condition`, without noise and not scaled.

use crate::Error;
use crate::layers::Scope;
use crate::models::config::unsupported;
use crate::models::network::{Given, Network, Port};
use crate::precondition::Precondition;
use clearshot_graph::{Type, Value};
use clearshot_tensor::Shape;

#[derive(Debug)]
pub struct Preconditioned {
    network: Box<dyn Network>,
    precondition: Precondition,
}

impl Preconditioned {
    /// # Errors
    /// If the network has no time input, or has more output than input channels.
    pub fn new(network: Box<dyn Network>, precondition: Precondition) -> Result<Preconditioned, Error> {
        let (from, to) = (network.in_channels(), network.out_channels());
        let sizes: Vec<usize> = [1].into_iter().chain(network.example_size()).chain([from]).collect();
        let ports = network.ports(Shape::new(&sizes));
        if !ports.iter().any(|p| p.name == "t") {
            let names: Vec<&str> = ports.iter().map(|p| p.name).collect();
            let got = format!("one that is told [{}]", names.join(", "));
            return Err(unsupported("network", got, "networks that are told a time, `t`"));
        }
        if to > from {
            let got = format!("one from {from} to {to} channels");
            return Err(unsupported("network", got, "networks that give no more channels than they take"));
        }
        Ok(Preconditioned { network, precondition })
    }

    /// Channels of the clean image beside the noisy one.
    fn condition(&self) -> usize {
        self.network.in_channels() - self.network.out_channels()
    }
}

impl Network for Preconditioned {
    fn in_channels(&self) -> usize {
        self.network.out_channels()
    }

    fn out_channels(&self) -> usize {
        self.network.out_channels()
    }

    fn dims(&self) -> usize {
        self.network.dims()
    }

    fn ports(&self, image: Shape) -> Vec<Port> {
        let whole = image.with(image.rank() - 1, self.network.in_channels());
        let mut ports = self.network.ports(whole);
        ports.iter_mut().filter(|p| p.name == "t").for_each(|p| p.name = "sigma");
        if self.condition() > 0 {
            let shape = image.with(image.rank() - 1, self.condition());
            ports.push(Port::new("condition", Type::f32(shape)));
        }
        ports
    }

    fn check_size(&self, size: &[usize]) -> Result<(), String> {
        self.network.check_size(size)
    }

    fn example_size(&self) -> Vec<usize> {
        self.network.example_size()
    }

    fn base_fan_in(&self) -> Option<usize> {
        self.network.base_fan_in()
    }

    fn drops(&self) -> bool {
        self.network.drops()
    }

    fn add(&self, s: &mut Scope<'_>, given: &Given) -> Value {
        let x = given.x();
        let c = self.precondition.coefficients(s.b, given.need("sigma"));
        let mut input = c.network_input(s.b, x);
        if let Some(condition) = given.get("condition") {
            input = s.b.concat_channels(&[input, condition]);
        }
        let inner = given.clone().with("x", input).with("t", c.noise);
        let raw = self.network.add(s, &inner);
        c.denoised(s.b, x, raw)
    }
}
