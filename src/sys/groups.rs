//! The control groups of this process: in which directories their limits lie.

/// For each controller the directories of the process's groups, from its own up to the root of what it sees,
/// each of which limits it. Relative to the root of the file system. `unified` is the second version's one
/// hierarchy; the others are the first version's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    /// All controllers.
    pub unified: Vec<String>,
    /// Cores.
    pub cpuset: Vec<String>,
    /// Time of cores.
    pub cpu: Vec<String>,
    /// Memory.
    pub memory: Vec<String>,
}

/// What one group has to say of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryGroup<'g> {
    /// Its directory.
    pub dir: &'g str,
    /// Bytes that it may use.
    pub max: u64,
    /// Its files: the limit, the bytes used, and in `memory.stat` the bytes of files that nobody used lately.
    pub files: &'static [&'static str; 3],
}

const SECOND: [&str; 3] = ["memory.max", "memory.current", "inactive_file"];
const FIRST: [&str; 3] = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];

/// `base/a/b`, `base/a`, `base`. In a container the path is often the host's and only `base` is there.
fn upwards(base: &str, path: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = path.trim_matches('/');
    while !rest.is_empty() && !rest.split('/').any(|part| part == "..") {
        all.push(format!("{base}/{rest}"));
        rest = rest.rsplit_once('/').map_or("", |(up, _)| up);
    }
    all.push(base.into());
    all
}

impl Groups {
    /// As `text` says, which `/proc/self/cgroup` holds.
    pub fn of(text: &str) -> Groups {
        let (mut unified, mut cpuset, mut cpu, mut memory) = ("", "", "", "");
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(number), Some(names), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if number == "0" && names.is_empty() {
                unified = path;
            }
            for name in names.split(',') {
                match name {
                    "cpuset" => cpuset = path,
                    "cpu" => cpu = path,
                    "memory" => memory = path,
                    _ => {}
                }
            }
        }
        Groups {
            unified: upwards("sys/fs/cgroup", unified),
            cpuset: upwards("sys/fs/cgroup/cpuset", cpuset),
            cpu: upwards("sys/fs/cgroup/cpu", cpu),
            memory: upwards("sys/fs/cgroup/memory", memory),
        }
    }

    /// The groups that limit memory. `number` reads the number that a file holds, if it holds one.
    pub fn memory<'g>(
        &'g self,
        number: impl Fn(&str) -> Option<u64> + 'g,
    ) -> impl Iterator<Item = MemoryGroup<'g>> {
        let second = self.unified.iter().map(|dir| (dir, &SECOND));
        let first = self.memory.iter().map(|dir| (dir, &FIRST));
        second.chain(first).filter_map(move |(dir, files)| {
            let max = number(&format!("{dir}/{}", files[0]))?;
            Some(MemoryGroup { dir, max, files })
        })
    }
}
