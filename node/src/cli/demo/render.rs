//! The demo's `image_render` tool: a small path tracer that writes a PNG. It runs as a process tool on whatever node carries
//! it: arguments as JSON on stdin, result as JSON on stdout.
//!
//! It computes on the CPU, always, and says so: the demo declares a GPU to show placement, and has none to compute on.
use std::{
    fs::File,
    io::{BufWriter, Read, Write},
    path::Path,
};

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

/// Larger pictures would take longer than a demo may.
const MOST_PIXELS: u32 = 640 * 480;
const BOUNCES: u32 = 4;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    #[serde(default = "default_width")]
    width: u32,
    #[serde(default = "default_height")]
    height: u32,
    /// Buoys on the water.
    #[serde(default = "default_buoys")]
    buoys: u32,
    #[serde(default = "default_samples")]
    samples: u32,
    #[serde(default = "default_path")]
    path: String,
}

fn default_width() -> u32 {
    320
}

fn default_height() -> u32 {
    200
}

fn default_buoys() -> u32 {
    5
}

fn default_samples() -> u32 {
    8
}

fn default_path() -> String {
    "picture.png".to_owned()
}

/// Entry point of the hidden command; gives the process's exit code.
pub(crate) fn main() -> std::process::ExitCode {
    match run() {
        Ok(result) => {
            // silent-ok: the node that reads us is gone
            let _ = writeln!(std::io::stdout(), "{result}");
            std::process::ExitCode::SUCCESS
        }
        Err(message) => {
            let _ = writeln!(std::io::stderr(), "{message}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<serde_json::Value, String> {
    let mut text = String::new();
    std::io::stdin().take(64 * 1024).read_to_string(&mut text).map_err(|e| format!("arguments: {e}"))?;
    let a: Arguments = serde_json::from_str(&text).map_err(|e| format!("arguments: {e}"))?;
    let pixels = a.width.checked_mul(a.height).filter(|p| (1..=MOST_PIXELS).contains(p));
    if pixels.is_none() || a.samples == 0 || a.samples > 64 || a.buoys > 64 {
        return Err(format!("a picture has 1 to {MOST_PIXELS} pixels, 1 to 64 samples and at most 64 buoys"));
    }
    let plain =
        !a.path.is_empty() && a.path.ends_with(".png") && !a.path.contains('/') && !a.path.starts_with('.');
    if !plain {
        return Err("path is a file name that ends with .png".to_owned());
    }
    let bytes = encode(&a, &scene(a.buoys))?;
    let file = File::create(Path::new(&a.path)).map_err(|e| format!("{}: {e}", a.path))?;
    let mut file = BufWriter::new(file);
    file.write_all(&bytes).and_then(|()| file.flush()).map_err(|e| format!("{}: {e}", a.path))?;
    Ok(json!({
        "path": a.path,
        "width": a.width,
        "height": a.height,
        "buoys": a.buoys,
        "samples": a.samples,
        "bytes": bytes.len(),
        "sha256": data_encoding::HEXLOWER.encode(&Sha256::digest(&bytes)),
        "device": "cpu",
        "note": "computed on the CPU: this renderer has no GPU code",
    }))
}

fn encode(a: &Arguments, scene: &[Sphere]) -> Result<Vec<u8>, String> {
    let mut pixels = Vec::with_capacity((a.width * a.height * 3) as usize);
    for y in 0..a.height {
        for x in 0..a.width {
            let mut random = Random(u64::from(y) << 32 | u64::from(x) | 1);
            let mut sum = V::ZERO;
            for _ in 0..a.samples {
                let u = (f64::from(x) + random.next()) / f64::from(a.width) * 2.0 - 1.0;
                let v = 1.0 - (f64::from(y) + random.next()) / f64::from(a.height) * 2.0;
                let ratio = f64::from(a.width) / f64::from(a.height);
                let direction = V(u * ratio, v - 0.15, -1.6).unit();
                sum = sum + trace(scene, V(0.0, 1.4, 6.0), direction, &mut random);
            }
            let color = sum * (1.0 / f64::from(a.samples));
            // Gamma 2; the cast saturates.
            pixels.extend([color.0, color.1, color.2].map(|c| (c.max(0.0).sqrt() * 255.0).min(255.0) as u8));
        }
    }
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, a.width, a.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(|e| e.to_string())?;
    writer.write_image_data(&pixels).map_err(|e| e.to_string())?;
    writer.finish().map_err(|e| e.to_string())?;
    Ok(bytes)
}

#[derive(Clone, Copy)]
struct V(f64, f64, f64);

impl V {
    const ZERO: Self = Self(0.0, 0.0, 0.0);

    fn dot(self, o: Self) -> f64 {
        self.0 * o.0 + self.1 * o.1 + self.2 * o.2
    }

    fn unit(self) -> Self {
        self * (1.0 / self.dot(self).sqrt())
    }

    fn times(self, o: Self) -> Self {
        Self(self.0 * o.0, self.1 * o.1, self.2 * o.2)
    }
}

impl std::ops::Add for V {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Self(self.0 + o.0, self.1 + o.1, self.2 + o.2)
    }
}

impl std::ops::Sub for V {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        Self(self.0 - o.0, self.1 - o.1, self.2 - o.2)
    }
}

impl std::ops::Mul<f64> for V {
    type Output = Self;
    fn mul(self, k: f64) -> Self {
        Self(self.0 * k, self.1 * k, self.2 * k)
    }
}

/// SplitMix64: the picture is the same everywhere for the same arguments.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

struct Sphere {
    center: V,
    radius: f64,
    color: V,
    light: f64,
    shine: f64,
}

/// A harbour at dusk: a wide sphere as the sea, a low sun, a row of buoys.
fn scene(buoys: u32) -> Vec<Sphere> {
    let mut scene = vec![
        Sphere {
            center: V(0.0, -1000.0, 0.0),
            radius: 1000.0,
            color: V(0.10, 0.22, 0.33),
            light: 0.0,
            shine: 0.7,
        },
        Sphere {
            center: V(-9.0, 5.0, -22.0),
            radius: 3.0,
            color: V(1.0, 0.72, 0.42),
            light: 7.0,
            shine: 0.0,
        },
    ];
    for i in 0..buoys {
        let across = (f64::from(i) + 0.5) / f64::from(buoys.max(1)) * 2.0 - 1.0;
        let radius = if buoys > 12 { 0.25 } else { 0.5 };
        let color = if i % 2 == 0 { V(0.85, 0.16, 0.10) } else { V(0.92, 0.85, 0.75) };
        let far = f64::from(i % 3) * 0.9;
        scene.push(Sphere {
            center: V(across * 3.4, radius * 0.85, 1.2 - far),
            radius,
            color,
            light: 0.0,
            shine: 0.15,
        });
    }
    scene
}

fn sky(direction: V) -> V {
    let t = 0.5 * (direction.1 + 1.0);
    V(0.95, 0.62, 0.45) * (1.0 - t) + V(0.20, 0.30, 0.55) * t
}

fn hit(scene: &[Sphere], from: V, direction: V) -> Option<(f64, &Sphere)> {
    scene
        .iter()
        .filter_map(|s| {
            let oc = from - s.center;
            let b = oc.dot(direction);
            let root = b * b - (oc.dot(oc) - s.radius * s.radius);
            let root = (root > 0.0).then(|| root.sqrt())?;
            [-b - root, -b + root].into_iter().find(|t| *t > 1e-3).map(|t| (t, s))
        })
        .min_by(|a, b| a.0.total_cmp(&b.0))
}

fn trace(scene: &[Sphere], from: V, direction: V, random: &mut Random) -> V {
    let (mut from, mut direction) = (from, direction);
    let (mut color, mut carried) = (V::ZERO, V(1.0, 1.0, 1.0));
    for _ in 0..BOUNCES {
        let Some((t, sphere)) = hit(scene, from, direction) else {
            return color + carried.times(sky(direction));
        };
        if sphere.light > 0.0 {
            return color + carried.times(sphere.color * sphere.light);
        }
        let point = from + direction * t;
        let normal = (point - sphere.center) * (1.0 / sphere.radius);
        let mirror = direction - normal * (2.0 * direction.dot(normal));
        let scatter = (normal + sphere_point(random)).unit();
        direction = if random.next() < sphere.shine { mirror.unit() } else { scatter };
        carried =
            carried.times(sphere.color * (1.0 - sphere.shine) + V(1.0, 1.0, 1.0) * (sphere.shine * 0.8));
        color = color + carried * 0.02;
        from = point;
    }
    color
}

fn sphere_point(random: &mut Random) -> V {
    let z = random.next() * 2.0 - 1.0;
    let angle = random.next() * std::f64::consts::TAU;
    let r = (1.0 - z * z).sqrt();
    V(r * angle.cos() * 0.999, r * angle.sin() * 0.999, z * 0.999)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_arguments_give_the_same_picture() {
        let a: Arguments = serde_json::from_str(r#"{"width": 24, "height": 16, "samples": 2}"#).unwrap();
        let picture = encode(&a, &scene(a.buoys)).unwrap();
        assert_eq!(picture, encode(&a, &scene(a.buoys)).unwrap());
        assert_eq!(&picture[..8], b"\x89PNG\r\n\x1a\n");
        assert_ne!(picture, encode(&a, &scene(1)).unwrap());
    }
}
