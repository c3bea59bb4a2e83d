//! A zip file made by hand, for checkpoints that no program would write. Also used by the fuzz target `pickle`.

/// As torch.save writes: members stored one behind the other, and their directory.
pub fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (vec![], vec![]);
    for (name, data) in members {
        let local = bytes.len() as u32;
        let length = data.len() as u32;
        let sums = [crc32fast::hash(data), length, length].map(u32::to_le_bytes).concat();
        let lengths = [(name.len() as u16).to_le_bytes(), [0, 0]].concat();
        bytes.extend([b"PK\x03\x04".as_slice(), &[0; 10], &sums, &lengths, name.as_bytes(), data].concat());
        let head = [b"PK\x01\x02".as_slice(), &[0; 12], &sums, &lengths, &[0; 10], &local.to_le_bytes()];
        directory.extend([&head.concat(), name.as_bytes()].concat());
    }
    let start = (bytes.len() as u32).to_le_bytes();
    let (count, size) = ((members.len() as u16).to_le_bytes(), (directory.len() as u32).to_le_bytes());
    bytes.extend(directory);
    bytes.extend([b"PK\x05\x06".as_slice(), &[0; 4], &count, &count, &size, &start, &[0; 2]].concat());
    bytes
}
