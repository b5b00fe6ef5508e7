package nat

import (
	"encoding/binary"
	"hash/crc32"
)

// SumRecords gives a block of records the checksum of its bytes.
func SumRecords(b []byte) { binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], recordSum)) }

// LongEnv is longEnv for tests from outside.
const LongEnv = longEnv
