//! What machines say of themselves, from the kernel's device trees and from running boards: nothing here is
//! from a board's file, so that a wrong entry there fails.

/// A kind of core: its number in the id register, and what `/proc/cpuinfo` lists. Of the Cortex-A78AE no list
/// was at hand.
pub struct Kind {
    pub part: u16,
    pub features: &'static str,
}

const A7: Kind = Kind {
    part: 0xc07,
    features: "half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32 lpae evtstrm",
};
const A53: Kind = Kind { part: 0xd03, features: "fp asimd evtstrm crc32 cpuid" };
const A72: Kind = Kind { part: 0xd08, features: "fp asimd evtstrm crc32 cpuid" };
const ARM82: &str = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm \
                     lrcpc dcpop asimddp";
const A55: Kind = Kind { part: 0xd05, features: ARM82 };
const A76: Kind = Kind { part: 0xd0b, features: ARM82 };
const A78AE: Kind = Kind { part: 0xd42, features: "" };

pub struct Recorded {
    /// Name of the board that it is.
    pub board: &'static str,
    pub architecture: &'static str,
    pub model: &'static str,
    pub compatible: &'static [&'static str],
    pub cores: &'static [(Kind, usize)],
    pub memory_mib: u64,
}

const fn aarch64(
    board: &'static str,
    model: &'static str,
    compatible: &'static [&'static str],
    cores: &'static [(Kind, usize)],
    memory_mib: u64,
) -> Recorded {
    Recorded { board, architecture: "aarch64", model, compatible, cores, memory_mib }
}

const fn stm32(model: &'static str, compatible: &'static [&'static str]) -> Recorded {
    let cores = &[(A7, 2)];
    let (board, architecture) = ("stm32mp157", "armv7");
    Recorded { board, architecture, model, compatible, cores, memory_mib: 512 }
}

/// Each with its device tree below `arch/`, or how it was seen on a running board.
pub const MACHINES: &[Recorded] = &[
    // arm/boot/dts/broadcom/bcm2837-rpi-3-b-plus.dts
    aarch64(
        "rpi3",
        "Raspberry Pi 3 Model B+",
        &["raspberrypi,3-model-b-plus", "brcm,bcm2837"],
        &[(A53, 4)],
        1024,
    ),
    // arm/boot/dts/broadcom/bcm2837-rpi-zero-2-w.dts
    aarch64(
        "rpi-zero-2w",
        "Raspberry Pi Zero 2 W",
        &["raspberrypi,model-zero-2-w", "brcm,bcm2837"],
        &[(A53, 4)],
        512,
    ),
    // arm/boot/dts/broadcom/bcm2711-rpi-4-b.dts
    aarch64(
        "rpi4",
        "Raspberry Pi 4 Model B",
        &["raspberrypi,4-model-b", "brcm,bcm2711"],
        &[(A72, 4)],
        1024,
    ),
    // arm/boot/dts/broadcom/bcm2711-rpi-400.dts
    aarch64("rpi4", "Raspberry Pi 400", &["raspberrypi,400", "brcm,bcm2711"], &[(A72, 4)], 4096),
    // As read on a module with Raspbian 10.
    aarch64(
        "rpi4",
        "Raspberry Pi Compute Module 4 Rev 1.0",
        &["raspberrypi,4-compute-module", "brcm,bcm2711"],
        &[(A72, 4)],
        1024,
    ),
    // arm64/boot/dts/broadcom/bcm2712-rpi-5-b-ovl-rp1.dts
    aarch64(
        "rpi5",
        "Raspberry Pi 5",
        &["raspberrypi,5-model-b", "brcm,bcm2712"],
        &[(A76, 4)],
        1024,
    ),
    // As read on a module, and by the firmware's name of it.
    aarch64(
        "rpi5",
        "Raspberry Pi Compute Module 5",
        &["raspberrypi,5-compute-module", "brcm,bcm2712"],
        &[(A76, 4)],
        2048,
    ),
    // As read on a running board; the 500+ says the same.
    aarch64("rpi5", "Raspberry Pi 500", &["raspberrypi,500", "brcm,bcm2712"], &[(A76, 4)], 8192),
    // arm64/boot/dts/freescale/imx8mp-evk.dts
    aarch64(
        "imx8mp",
        "NXP i.MX8MPlus EVK board",
        &["fsl,imx8mp-evk", "fsl,imx8mp"],
        &[(A53, 4)],
        6144,
    ),
    // arm64/boot/dts/nvidia/tegra234-p3768-0000+p3767-0005.dts
    aarch64(
        "jetson-orin-nano",
        "NVIDIA Jetson Orin Nano Developer Kit",
        &["nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234"],
        &[(A78AE, 6)],
        8192,
    ),
    // As read on a module with JetPack 6.2, which calls it by the other module's name.
    aarch64(
        "jetson-orin-nano",
        "NVIDIA Jetson Orin NX Engineering Reference Developer Kit Super",
        &["nvidia,p3768-0000+p3767-0003-super", "nvidia,p3767-0003", "nvidia,tegra234"],
        &[(A78AE, 6)],
        8192,
    ),
    // arm64/boot/dts/nvidia/tegra234-p3768-0000+p3767-0000.dts
    aarch64(
        "jetson-orin-nx",
        "NVIDIA Jetson Orin NX Engineering Reference Developer Kit",
        &["nvidia,p3768-0000+p3767-0000", "nvidia,p3767-0000", "nvidia,tegra234"],
        &[(A78AE, 8)],
        16384,
    ),
    // NVIDIA's overlays name the board so.
    aarch64(
        "jetson-orin-nx-8gb",
        "NVIDIA Jetson Orin NX Engineering Reference Developer Kit",
        &["nvidia,p3768-0000+p3767-0001", "nvidia,tegra234"],
        &[(A78AE, 6)],
        8192,
    ),
    // arm64/boot/dts/rockchip/rk3588-rock-5b.dts
    aarch64(
        "rk3588",
        "Radxa ROCK 5 Model B",
        &["radxa,rock-5b", "rockchip,rk3588"],
        &[(A55, 4), (A76, 4)],
        4096,
    ),
    // arm64/boot/dts/rockchip/rk3588s-orangepi-5.dts
    aarch64(
        "rk3588",
        "Xunlong Orange Pi 5",
        &["xunlong,orangepi-5", "rockchip,rk3588s"],
        &[(A55, 4), (A76, 4)],
        4096,
    ),
    // arm64/boot/dts/ti/k3-am625-beagleplay.dts
    aarch64(
        "beagleplay",
        "BeagleBoard.org BeaglePlay",
        &["beagle,am625-beagleplay", "ti,am625"],
        &[(A53, 4)],
        2048,
    ),
    // arm/boot/dts/st/stm32mp157a-dk1.dts, stm32mp157c-dk2.dts, stm32mp157f-dk2.dts
    stm32(
        "STMicroelectronics STM32MP157A-DK1 Discovery Board",
        &["st,stm32mp157a-dk1", "st,stm32mp157"],
    ),
    stm32(
        "STMicroelectronics STM32MP157C-DK2 Discovery Board",
        &["st,stm32mp157c-dk2", "st,stm32mp157"],
    ),
    stm32(
        "STMicroelectronics STM32MP157F-DK2 Discovery Board",
        &["st,stm32mp157f-dk2", "st,stm32mp157"],
    ),
];
