package terms

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"culvert/gateway/configfile"
	"culvert/gateway/wgkey"
	"culvert/kube/peering"
)

// begin is what an invitation begins with. Its version follows.
const begin = "culvert invitation "

// Annotation is where a Peering keeps the nonce of this cluster's invitation.
const Annotation = "culvert.io/invitation"

// EndpointAnnotation is where a Client's Peering keeps the endpoint that culvert join has found,
// which follows the Server's Service. One that differs is an administrator's, and stays.
const EndpointAnnotation = "culvert.io/endpoint"

// MaxName is the maximum number of characters in a Peering's name, which is the peer's ID: names of
// other objects begin with it.
const MaxName = 40

// MaxInvitation is the maximum size of an invitation in bytes, in any version.
const MaxInvitation = 8192

// invitationVersion is the version of the text. In another version the same lines may mean
// something else. Version 1 is the same without IPv6, which its readers refuse.
const invitationVersion = 2

// An Invitation is what one cluster tells another, without any secret. Integrity is a matter of the
// channel: users compare its Words.
type Invitation struct {
	From, To string    // cluster IDs
	Key      wgkey.Key // public, of From's gateway
	// host:port of From's gateway; "" in an answer, because the cluster that answers connects to
	// the one that invites
	Endpoint string
	Pods     []netip.Prefix
	External []netip.Prefix // one of each family of Pods
	Nonce    string
	Answers  string // the nonce of the invitation that this one answers; "" of the first
}

// NewNonce returns a new random nonce.
func NewNonce() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// version is the lowest one that can say what i says.
func (i *Invitation) version() int {
	if hasFamily(i.Pods, true) || hasFamily(i.External, true) {
		return invitationVersion
	}
	return 1
}

// body is the text without its checksum.
func (i *Invitation) body() string {
	var b strings.Builder
	fmt.Fprintf(&b, begin+"%d\nfrom %s\nto %s\nkey %s\n", i.version(), i.From, i.To, i.Key.Base64())
	if i.Endpoint != "" {
		fmt.Fprintf(&b, "endpoint %s\n", i.Endpoint)
	}
	for _, p := range i.Pods {
		fmt.Fprintf(&b, "pods %s\n", p)
	}
	for _, p := range i.External {
		fmt.Fprintf(&b, "external %s\n", p)
	}
	fmt.Fprintf(&b, "nonce %s\n", i.Nonce)
	if i.Answers != "" {
		fmt.Fprintf(&b, "answers %s\n", i.Answers)
	}
	return b.String()
}

// checksum detects accidental changes on the way.
func checksum(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:8])
}

// Text returns the invitation as it is sent.
func (i *Invitation) Text() string {
	body := i.body()
	return body + "checksum " + checksum(body) + "\n"
}

// Words returns six words that both sides compare. A change of the invitation on its way changes
// them.
func (i *Invitation) Words() string { return words(i.body()) }

var (
	errNoInvitation = errors.New(
		`no invitation: want a text that begins with "culvert invitation" and ends with "checksum"`)
	errTruncated = errors.New(`truncated: the last line, "checksum", is missing; send it again`)
	errAltered   = errors.New("altered on its way: the checksum is that of another text; send it again, as a file")
)

// ParseInvitation reads an invitation. What a mail has around it is ignored: text before and after,
// the marks of a quotation, blank lines, spaces at the ends of lines, and carriage returns.
func ParseInvitation(text []byte) (*Invitation, error) {
	if len(text) > MaxInvitation {
		return nil, fmt.Errorf("%d bytes; an invitation has at most %d", len(text), MaxInvitation)
	}
	var lines []string
	whole := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(strings.TrimLeft(line, "> \t"))
		switch begins := strings.HasPrefix(line, begin); {
		case begins && len(lines) > 0:
			return nil, errors.New("more than one invitation; leave the newest one")
		case line == "" || whole || len(lines) == 0 && !begins:
			continue
		}
		lines = append(lines, line)
		whole = strings.HasPrefix(line, "checksum ")
	}
	if len(lines) == 0 {
		return nil, errNoInvitation
	}
	version, ok := strings.CutPrefix(lines[0], begin)
	number, err := strconv.Atoi(version)
	switch {
	case !ok || err != nil:
		return nil, errNoInvitation
	case number > invitationVersion:
		return nil,
			fmt.Errorf("version %d; this culvert reads version %d: use a newer culvert here, or have the other side use an older one", number, invitationVersion)
	case number < 1:
		return nil, errNoInvitation
	}
	last := len(lines) - 1
	sum, ok := strings.CutPrefix(lines[last], "checksum ")
	if !ok {
		return nil, errTruncated
	}
	body := strings.Join(lines[:last], "\n") + "\n"
	if sum != checksum(body) {
		return nil, errAltered
	}
	i := &Invitation{}
	for _, line := range lines[1:last] {
		if err := i.read(line); err != nil {
			return nil, err
		}
	}
	if err := i.check(); err != nil {
		return nil, err
	}
	if i.body() != body { // a repeated line, another order, or a number in another format
		return nil, errors.New("no invitation that culvert writes: lines are missing, repeated or in another order")
	}
	return i, nil
}

// read reads one line.
func (i *Invitation) read(line string) (err error) {
	name, value, _ := strings.Cut(line, " ")
	switch name {
	case "from":
		i.From = value
	case "to":
		i.To = value
	case "key":
		i.Key, err = wgkey.Parse(value)
	case "endpoint":
		i.Endpoint = value
	case "pods", "external":
		to := &i.Pods
		if name == "external" {
			to = &i.External
		}
		var p netip.Prefix
		if p, err = netip.ParsePrefix(value); err == nil {
			*to = append(*to, p)
		}
	case "nonce":
		i.Nonce = value
	case "answers":
		i.Answers = value
	default:
		return fmt.Errorf("%q is no line of an invitation of version %d", name, invitationVersion)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// check reports values that no cluster would send, by the same rules as for a Peering.
func (i *Invitation) check() error {
	e := new(configfile.Errors)
	CheckName(e, "from", i.From)
	CheckName(e, "to", i.To)
	if i.From == i.To {
		e.Add("to", "%q is who invites", i.To)
	}
	if i.Key == (wgkey.Key{}) {
		e.Add("key", "missing")
	}
	if (i.Endpoint == "") == (i.Answers == "") {
		e.Add("endpoint", "whoever invites has one, and whoever answers has none")
	}
	if i.Endpoint != "" {
		if fault := peering.CheckEndpoint(i.Endpoint); fault != "" {
			e.Add("endpoint", "%s", fault)
		}
	}
	for field, nonce := range map[string]string{"nonce": i.Nonce, "answers": i.Answers} {
		if raw, err := hex.DecodeString(nonce); (nonce != "" || field == "nonce") && (err != nil || len(raw) != 16) {
			e.Add(field, "want 32 hexadecimal digits")
		}
	}
	if len(i.Pods) == 0 || len(i.Pods) > maxCIDRs {
		e.Add("pods", "%d of them; want 1 to %d", len(i.Pods), maxCIDRs)
	}
	for _, v6 := range []bool{false, true} {
		if n := len(only([]bool{v6}, i.External)); n != bit(hasFamily(i.Pods, v6)) {
			e.Add("external", "%d of %s; want one for each family of pods", n, []string{"IPv4", "IPv6"}[bit(v6)])
		}
	}
	if err := e.Err(); err != nil {
		return err
	}
	for k, p := range slices.Concat(i.External, i.Pods) {
		field := "external"
		if k >= len(i.External) {
			field = "pods"
		}
		if fault := peering.CheckCIDR(p); fault != "" {
			e.Add(field, "%s", fault)
		}
		for _, other := range slices.Concat(i.External, i.Pods)[:k] {
			if p.Overlaps(other) {
				e.Add(field, "%s overlaps %s, which is the same cluster's", p, other)
			}
		}
	}
	return e.Err()
}
