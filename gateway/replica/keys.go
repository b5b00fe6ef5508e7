package replica

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"math/big"

	"culvert/gateway/seats"
	"culvert/gateway/wgkey"
)

// The labels from which keys are derived (RFC 5869, Section 3.2). Each label gives another key.
const (
	saltLabel     = "culvert replica v1"
	sourceLabel   = "source"
	followerLabel = "follower"
	nameLabel     = "name"
)

// errKey means that the other end has another private key of WireGuard, so it is not a replica of
// this gateway.
var errKey = errors.New("the other end has another key")

// identities are both ends of a stream between replicas of one gateway.
type identities struct {
	source, follower ed25519.PrivateKey
	name             string // the server name that followers send
}

func newIdentities(key wgkey.Key) identities {
	derive := func(label string, n int) []byte {
		b, err := hkdf.Key(sha256.New, key[:], []byte(saltLabel), label, n)
		if err != nil {
			panic(err) // unreachable: n is small
		}
		return b
	}
	return identities{
		source:   ed25519.NewKeyFromSeed(derive(sourceLabel, ed25519.SeedSize)),
		follower: ed25519.NewKeyFromSeed(derive(followerLabel, ed25519.SeedSize)),
		name:     hex.EncodeToString(derive(nameLabel, 16)) + ".culvert",
	}
}

// server returns the TLS configuration of a source.
func (i *identities) server() *tls.Config {
	c := config(i.source, i.follower)
	c.ClientAuth = tls.RequireAnyClientCert // VerifyConnection compares it
	c.SessionTicketsDisabled = true
	c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if subtle.ConstantTimeCompare([]byte(hello.ServerName), []byte(i.name)) != 1 {
			return nil, errKey
		}
		seats.Keep(hello.Conn) // strangers do not know the name
		return nil, nil
	}
	return c
}

// client returns the TLS configuration of a follower.
func (i *identities) client() *tls.Config {
	c := config(i.follower, i.source)
	c.ServerName = i.name
	c.InsecureSkipVerify = true // no CA knows these keys: VerifyConnection compares them
	return c
}

func config(own, other ed25519.PrivateKey) *tls.Config {
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	certificate, err := x509.CreateCertificate(nil, template, template, own.Public(), own)
	if err != nil {
		panic(err) // unreachable: the key is an Ed25519 key
	}
	want := other.Public().(ed25519.PublicKey)
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: own}},
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !want.Equal(s.PeerCertificates[0].PublicKey) {
				return errKey
			}
			return nil
		},
	}
}
