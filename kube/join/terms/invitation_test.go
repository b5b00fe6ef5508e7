package terms

import (
	"bytes"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"culvert/gateway/wgkey"
)

func invitation() *Invitation {
	key, _ := wgkey.Parse("xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=")
	return &Invitation{From: "rome", To: "milan", Key: key, Endpoint: "192.0.2.7:51840",
		Nonce:    strings.Repeat("0123456789abcdef", 2),
		Pods:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.9.0.0/20")},
		External: []netip.Prefix{netip.MustParsePrefix("10.70.0.0/23")}}
}

// dual is an invitation of a cluster with both families.
func dual() *Invitation {
	i := invitation()
	i.Pods = append(i.Pods, netip.MustParsePrefix("fd00:244::/56"))
	i.External = append(i.External, netip.MustParsePrefix("fd01:2:3:1000::/112"))
	return i
}

func answer() *Invitation {
	i := invitation()
	i.From, i.To, i.Endpoint, i.Answers = "milan", "rome", "", strings.Repeat("f", 32)
	return i
}

// sealed gives a body its checksum.
func sealed(body string) string { return body + "checksum " + checksum(body) + "\n" }

func TestInvitation(t *testing.T) {
	for _, i := range []*Invitation{invitation(), answer(), dual()} {
		got, err := ParseInvitation([]byte(i.Text()))
		if err != nil || !reflect.DeepEqual(got, i) {
			t.Errorf("%+v, %v, want %+v", got, err, i)
		}
		mailed := "\r\n" + strings.ReplaceAll(i.Text(), "\n", "  \r\n\r\n") + "\n"
		if got, err := ParseInvitation([]byte(mailed)); err != nil || got.Words() != i.Words() {
			t.Errorf("with the line ends and spaces of a mail: %v", err)
		}
		quoted := "Hello milan,\nhere it is:\n\n> > " + strings.ReplaceAll(strings.TrimSpace(i.Text()), "\n", "\n>> ") +
			"\n\n-- \nthe people of rome\nfrom Rome with love\n"
		if got, err := ParseInvitation([]byte(quoted)); err != nil || got.Words() != i.Words() {
			t.Errorf("quoted, with a greeting and a footer: %v", err)
		}
	}
	if w := invitation().Words(); !regexp.MustCompile(`^([a-z]{5} ){5}[a-z]{5}$`).MatchString(w) ||
		w == answer().Words() {
		t.Error(w)
	}
	// 127.0.0.1 and 255.255 in the paper
	if got := word(0x7f00) + " " + word(1) + " " + word(0xffff); got != "lusab babad zuzuz" {
		t.Error(got)
	}
	if text := invitation().Text(); len(text) > 400 {
		t.Errorf("%d bytes", len(text))
	}
}

func TestInvitationRefused(t *testing.T) {
	text, body := invitation().Text(), invitation().body()
	for n := range len(text) - 1 {
		if _, err := ParseInvitation([]byte(text[:n])); err == nil {
			t.Errorf("the first %d of %d bytes are accepted", n, len(text))
		}
	}
	for n := range len(text) {
		altered := []byte(text)
		altered[n] ^= 1
		if got, err := ParseInvitation(altered); err == nil && got.Text() != text {
			t.Errorf("byte %d altered: accepted", n)
		}
	}
	change := func(old, new string) string {
		if !strings.Contains(body, old) {
			t.Fatalf("no %q", old)
		}
		return sealed(strings.Replace(body, old, new, 1))
	}
	for text, want := range map[string]string{
		"":                           "no invitation",
		"hello\n":                    "no invitation",
		"culvert invitation one\n":   "no invitation",
		body:                         "truncated",
		body[:60]:                    "truncated",
		text[:len(text)-3]:           "altered",
		change("milan", "turin")[:1]: "no invitation",
		strings.Replace(text, "milan", "turin", 1): "altered",
		change("invitation 1",
			"invitation 3"): "version 3; this culvert reads version 2: use a newer culvert",
		change("invitation 1", "invitation 0"):                             "no invitation",
		change("to milan", "to rome"):                                      `to: "rome" is who invites`,
		change("from rome", "from Rome"):                                   `from: "Rome" is no name of a cluster`,
		change("from rome\n", ""):                                          "from: missing",
		change("nonce 0123", "nonce 012"):                                  "nonce: want 32",
		change("nonce 0", "nonce g"):                                       "nonce: want 32",
		change("endpoint 192.0.2.7:51840\n", ""):                           "endpoint: whoever invites has one",
		change("nonce", "answers 0123456789abcdef0123456789abcdef\nnonce"): "endpoint: whoever invites has one",
		change("192.0.2.7:51840", "192.0.2.7"):                             `endpoint: "192.0.2.7" is not host:port`,
		change("192.0.2.7:51840",
			"127.0.0.1:51840"): `endpoint: "127.0.0.1" is an address that routers do not`,
		change("192.0.2.7:51840", "169.254.169.254:80"): `endpoint: "169.254.169.254" is an address`,
		change("192.0.2.7:51840", "0.0.0.0:51840"):      `endpoint: "0.0.0.0" is an address`,
		change("192.0.2.7:51840", "[ff02::1]:51840"):    `endpoint: "ff02::1" is an address`,
		change("192.0.2.7:51840",
			"[2001:db8::1%eth0 $(id)]:51840"): `endpoint: "2001:db8::1%eth0 $(id)" is an address`,
		text + text:                        "more than one invitation",
		change("192.0.2.7:51840", "a b:1"): `endpoint: "a b" is neither`,
		change("pods 10.244.0.0/16\npods 10.9.0.0/20\n", ""): "pods: 0 of them",
		change("pods 10.244.0.0/16", "pods 0.0.0.0/0"):       "pods: 0.0.0.0/0 is shorter than /8",
		change("pods 10.244.0.0/16", "pods fd00::/64"):       "external: 0 of IPv6; want one",
		change("pods 10.244.0.0/16", "pods 10.244.0.1/16"):   "pods: 10.244.0.1/16 has bits",
		change("pods 10.244.0.0/16", "pods 127.0.0.0/8"):     "pods: 127.0.0.0/8 has addresses that routers",
		change("pods 10.244.0.0/16", "pods 10.8.0.0/15"):     "pods: 10.9.0.0/20 overlaps 10.8.0.0/15",
		change("pods 10.244.0.0/16", "pods 10.70.0.0/16"):    "pods: 10.70.0.0/16 overlaps 10.70.0.0/23, which is",
		change("external 10.70.0.0/23", "external ?"):        "external: ",
		change("external 10.70.0.0/23\n", ""):                "external: ",
		change("key x", "key y"):                             "", // another key is another invitation
		change("key x", "key "):                              "key: not a WireGuard key",
		change("pods", "secret x\npods"):                     `"secret" is no line`,
		change("to milan", "to milan\nto milan"):             "no invitation that culvert writes",
		change("from rome\nto milan", "to milan\nfrom rome"): "no invitation that culvert writes",
		strings.Repeat("x", MaxInvitation+1):                 "8193 bytes",
	} {
		_, err := ParseInvitation([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s, of\n%s", err, want, text[:min(len(text), 400)])
		}
	}
	many := ""
	for n := range 17 {
		many += fmt.Sprintf("pods 10.%d.0.0/16\n", n)
	}
	if _, err := ParseInvitation([]byte(change("pods 10.244.0.0/16\npods 10.9.0.0/20\n", many))); err == nil ||
		!strings.HasPrefix(err.Error(), "pods: 17 of them") {
		t.Error(err)
	}
}

// FuzzInvitation: an accepted invitation is one that culvert could have written, and a proposal
// from it is valid or refused.
func FuzzInvitation(f *testing.F) {
	for _, i := range []*Invitation{invitation(), answer()} {
		f.Add([]byte(i.Text()))
		f.Add([]byte(i.body()))
	}
	f.Add([]byte("culvert invitation 2\n"))
	rome := cluster(f, "rome", "172.18.0")
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, text := range [][]byte{text, []byte(sealed(string(text)))} { // the fuzzer finds no hashes
			i, err := ParseInvitation(text)
			if err != nil {
				continue
			}
			again, err := ParseInvitation([]byte(i.Text()))
			if err != nil || !reflect.DeepEqual(i, again) || !bytes.Equal([]byte(i.Text()), []byte(again.Text())) {
				t.Fatalf("%+v, %v, of %q", again, err, text)
			}
			spec, _, err := rome.Propose(Peer{Name: i.From, Pods: i.Pods, External: i.External, Key: i.Key,
				Endpoint: i.Endpoint, Role: "Client"}, nil, nil)
			if err == nil && len(spec.Remote.PodCIDRs) != len(i.Pods) {
				t.Fatalf("%+v of %q", spec, text)
			}
		}
	})
}
