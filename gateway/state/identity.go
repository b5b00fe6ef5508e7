package state

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"strings"
	"unicode"
)

// Identity is what a gateway's peer and connections rely on, beyond its configuration.
type Identity struct {
	Cluster string  // of the gateway
	PortKey PortKey // for the choice of ports and backends
	Peer    Peer
}

// Peer is the other end of the tunnel.
type Peer struct {
	PublicKey  string         `json:"publicKey"`  // base64
	Configured string         `json:"configured"` // its endpoint in the configuration; "" = the peer comes to us
	Endpoint   netip.AddrPort `json:"endpoint"`   // its last address; the zero AddrPort = unknown
}

// PortKey is a secret: with it, the next ports can be predicted. It formats as "(hidden)" under
// every verb.
type PortKey [16]byte

// Format hides the key.
func (k PortKey) Format(s fmt.State, _ rune) { s.Write([]byte("(hidden)")) }

// MarshalText hides the key from encoders.
func (k PortKey) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }

// Why saved data cannot be used.
var (
	ErrDamaged = errors.New("damaged")
	ErrNewer   = errors.New("of a newer version")
	ErrForeign = errors.New("of another gateway")
)

// version is the version of an Identity's text. Fields may be added without a new one.
const version = 1

// identityText is an Identity as text.
type identityText struct {
	Cluster string `json:"cluster"`
	PortKey string `json:"portKey"`
	Peer    Peer   `json:"peer"`
}

const headFormat = "culvert state, version %d, CRC-32C %08x\n"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns i as text: a line with version and checksum, then JSON.
func (i *Identity) Encode() []byte {
	body, err := json.Marshal(identityText{i.Cluster, base64.StdEncoding.EncodeToString(i.PortKey[:]), i.Peer})
	if err != nil {
		panic(err) // unreachable: strings and an address
	}
	return append(fmt.Appendf(nil, headFormat, version, crc32.Checksum(body, castagnoli)), body...)
}

// DecodeIdentity is the inverse of Encode. Its error is ErrDamaged or ErrNewer.
func DecodeIdentity(text []byte) (i Identity, err error) {
	head, body, _ := bytes.Cut(text, []byte("\n"))
	var v, sum uint32
	if _, err := fmt.Sscanf(string(head)+"\n", headFormat, &v, &sum); err != nil || v == 0 {
		return Identity{}, ErrDamaged
	}
	if v > version {
		return Identity{}, ErrNewer
	}
	if crc32.Checksum(body, castagnoli) != sum {
		return Identity{}, ErrDamaged
	}
	var t identityText
	if json.Unmarshal(body, &t) != nil {
		return Identity{}, ErrDamaged
	}
	key, err := base64.StdEncoding.DecodeString(t.PortKey)
	// The endpoint is written into a line of text.
	if err != nil || len(key) != len(i.PortKey) || strings.ContainsFunc(t.Peer.Endpoint.Addr().Zone(),
		unicode.IsControl) {
		return Identity{}, ErrDamaged
	}
	i = Identity{t.Cluster, PortKey(key), t.Peer}
	return i, nil
}
