package nattest

import (
	"bytes"
	"encoding/binary"
)

// Fragment cuts an IPv4 packet without options into fragments with size bytes of payload, a
// multiple of 8; the last may have fewer.
func Fragment(b []byte, size int) (fs [][]byte) {
	for at := 20; at < len(b); at += size {
		end := min(at+size, len(b))
		f := append(bytes.Clone(b[:20]), b[at:end]...)
		binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
		offset := uint16(at-20) / 8
		if end < len(b) {
			offset |= 0x2000
		}
		binary.BigEndian.PutUint16(f[6:], offset)
		f[10], f[11] = 0, 0
		binary.BigEndian.PutUint16(f[10:], Checksum(f[:20]))
		fs = append(fs, f)
	}
	return fs
}
