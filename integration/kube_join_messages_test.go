package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"culvert/integration/need"
	"culvert/kube/join/terms"
)

// testJoinMessages joins the clusters by an invitation and its answer.
func testJoinMessages(t *testing.T, l *joinLab) {
	rome, milan := l.rome, l.milan
	file := func(name string, p *peerProcess) string {
		name = filepath.Join(t.TempDir(), name)
		text := p.output()
		if i := strings.Index(text, "culvert invitation"); i >= 0 { // the log is in the same file
			text = text[i:]
		}
		text, _, _ = strings.Cut(text, "words of")
		need.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	words := func(out string) string {
		_, after, _ := strings.Cut(out, "words of this message, ")
		_, after, _ = strings.Cut(after, ": ")
		line, _, _ := strings.Cut(after, "\n")
		return line
	}
	invite := l.start("invite", "--context=admin@milan", "--peer=rome", "--image=registry.example/culvert:test",
		"--expose=LoadBalancer", "--services=shop", "--yes")
	milan.kubelet("gateway-1")
	l.await(invite, "checksum")
	invitation := file("milan.invite", invite)
	if out, err := l.culvert("accept", "--context=admin@milan", "--yes", invitation); err == nil ||
		!strings.Contains(out, "culvert: admin@milan: the message is this cluster's own") {
		t.Errorf("a cluster accepts its own invitation: %v: %s", err, out)
	}
	if out, err := l.culvert("accept", "--context=admin@rome", "--image=registry.example/culvert:test", "--yes",
		unfit(t, invitation)); err == nil ||
		!strings.Contains(out, "remap of 10.0.0.0/8, pods of milan: no private /8 is free in rome") {
		t.Errorf("an invitation with CIDRs that no remap fits: %v: %s", err, out)
	}
	if _, err := rome.api.admin.get(namespace(peeringNamespace)); err == nil {
		t.Error("a refused invitation has installed something")
	}
	accept := l.start("accept", "--context=admin@rome", "--image=registry.example/culvert:test", "--yes", invitation)
	rome.kubelet("gateway-1")
	l.await(accept, "answers ")
	if a, b := words(invite.output()), words(accept.output()); a == "" || a != b {
		t.Errorf("the invitation has the words %q, the answer %q; want the same", a, b)
	}
	answer := file("rome.invite", accept)
	altered := filepath.Join(t.TempDir(), "altered")
	text, err := os.ReadFile(answer)
	if err == nil {
		err = os.WriteFile(altered, bytes.Replace(text, []byte("pods 10.244"), []byte("pods 10.245"), 1), 0o600)
	}
	need.NoError(t, err)
	if out, err := l.culvert("accept", "--context=admin@milan", "--yes", altered); err == nil ||
		!strings.Contains(out, "altered on its way") {
		t.Errorf("an altered answer is accepted: %v: %s", err, out)
	}
	for range 2 { // the second time nothing changes
		l.must("milan is connected, 2/2 nodes", "accept", "--context=admin@milan", "--yes", answer)
	}
	rome.ping(milan)
	milan.ping(rome)
	got := field(mustObject(t)(milan.api.admin.get(milan.peering())), "spec", "services", "import")
	if !reflect.DeepEqual(got, []any{"shop"}) {
		t.Errorf("culvert invite --services=shop, then accept: milan imports %v", got)
	}
}

// unfit changes an invitation into that of a cluster whose pod CIDR is 10.0.0.0/8.
func unfit(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	need.NoError(t, err)
	i, err := terms.ParseInvitation(text)
	need.NoError(t, err)
	i.Pods, i.External = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, []netip.Prefix{netip.MustParsePrefix("172.31.0.0/24")}
	file = filepath.Join(t.TempDir(), "unfit")
	need.NoError(t, os.WriteFile(file, []byte(i.Text()), 0o600))
	return file
}

// testJoinKey: a gateway that starts with an empty Secret makes another key, and culvert join gives
// it to the peer.
func testJoinKey(t *testing.T, l *joinLab) {
	rome, milan := l.rome, l.milan
	before := rome.status("publicKey")
	secret := kubePath("v1", "Secret", peeringNamespace, "culvert-milan")
	need.NoError(t, rome.api.admin.request(http.MethodPatch, secret, "application/merge-patch+json",
		object{"data": nil}, nil))
	need.NoError(t, rome.gateway.cmd.Process.Signal(syscall.SIGTERM))
	<-rome.gateway.ended
	rome.startGateway("gateway-2")
	rome.podOf(rome.deployment(), "gateway-2")
	eventually(t, "another public key", func() error {
		if now := rome.status("publicKey"); now == before {
			return fmt.Errorf("it is still %v", now)
		}
		return nil
	})
	l.must("rome is connected, 2/2 nodes", "join", "--context=admin@rome", "--context=admin@milan", "--yes")
	rome.ping(milan)
	milan.ping(rome)
}
