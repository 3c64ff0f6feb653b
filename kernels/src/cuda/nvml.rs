//! What NVML says of a device now. What it does not say is absent, never 0.
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

/// State of a device at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Clock of the multiprocessors in MHz.
    pub clock_mhz: Option<u32>,
    /// Memory clock in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Temperature in degrees Celsius.
    pub temperature: Option<u32>,
    /// Power in milliwatts.
    pub power: Option<u32>,
    /// Why clocks are held down, as the driver's bits.
    pub throttle: Option<u64>,
}

/// Bits that void a sample: hardware slow-down, thermal slow-down by software and hardware, power brake. The power
/// cap by software (4) is where a busy device lives; it is recorded, not refused.
const SLOWED: u64 = 0x08 | 0x20 | 0x40 | 0x80;

impl DeviceState {
    /// Whether the device was slowed down; `None` where NVML does not say.
    pub fn slowed(&self) -> Option<bool> {
        self.throttle.map(|bits| bits & SLOWED != 0)
    }
}

/// A connection to NVML, where there is one.
pub struct Monitor {
    nvml: Option<Nvml>,
    pci: String,
}

impl Monitor {
    /// Watches the device at PCI address `pci`.
    pub fn new(pci: &str) -> Self {
        Self { nvml: Nvml::init().ok(), pci: pci.into() }
    }

    /// What the device's state is now.
    pub fn state(&self) -> DeviceState {
        let Some(nvml) = &self.nvml else { return DeviceState::default() };
        let Ok(device) = nvml.device_by_pci_bus_id(self.pci.as_str()) else { return DeviceState::default() };
        DeviceState {
            clock_mhz: device.clock_info(Clock::SM).ok(),
            memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
            temperature: device.temperature(TemperatureSensor::Gpu).ok(),
            power: device.power_usage().ok(),
            throttle: device.current_throttle_reasons().ok().map(|r| r.bits()),
        }
    }

    /// The driver's version text.
    pub fn driver(&self) -> Option<String> {
        self.nvml.as_ref()?.sys_driver_version().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_nvml_everything_is_absent() {
        let monitor = Monitor { nvml: None, pci: "0".into() };
        assert_eq!(monitor.state(), DeviceState::default());
        assert_eq!((monitor.state().slowed(), monitor.driver()), (None, None));
        let hot = DeviceState { throttle: Some(0x20), ..DeviceState::default() };
        let idle = DeviceState { throttle: Some(0x01), ..DeviceState::default() };
        assert_eq!((hot.slowed(), idle.slowed()), (Some(true), Some(false)));
    }
}
