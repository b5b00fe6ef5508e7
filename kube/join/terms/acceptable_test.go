package terms

import (
	"net/netip"
	"strings"
	"testing"
)

// invited is a Peering of rome that has invited milan.
const invited = `{apiVersion: culvert.io/v1alpha1, kind: Peering, metadata: {name: milan, namespace: culvert, annotations: {culvert.io/invitation: ffffffffffffffffffffffffffffffff}},
  spec: {cluster: rome, peer: milan, role: Server, internalCIDR: 10.80.0.0/22, local: {podCIDRs: [10.244.0.0/16], externalCIDR: 10.70.0.0/23}KEY},
  status: {publicKey: OWN}}`

func TestAcceptable(t *testing.T) {
	const other = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw="
	from := func(i *Invitation) *Invitation { i.From, i.To = "milan", "rome"; return i }
	peering := func(key, own string) string { return strings.NewReplacer("KEY", key, "OWN", own).Replace(invited) }
	client := func(key string) string { // rome has accepted milan's invitation
		return strings.Replace(
			peering(", endpoint: '192.0.2.7:51840', remote: {podCIDRs: [{cidr: 10.244.0.0/16, remap: 10.61.0.0/16}]}, publicKey: "+key, other), "role: Server", "role: Client", 1)
	}
	another := func(i *Invitation) *Invitation { i.Answers = strings.Repeat("e", 32); return i }
	for _, c := range []struct {
		name, peering string
		message       *Invitation
		want          string
	}{
		{"first", serviceCIDR, from(invitation()), ""},
		{"used twice", client(invitation().Key.Base64()), from(invitation()), ""}, // nothing changes
		{"used by another", client(other), from(invitation()),
			"Peering milan already has another key of its peer: a message can be used once"},
		{"answer", peering("", other), answer(), ""},
		{"answer again", peering(", publicKey: "+answer().Key.Base64(), other), answer(), ""},
		{"its own", peering("", invitation().Key.Base64()), from(invitation()), "the message is this cluster's own"},
		{"both invite", peering("", other), from(invitation()), "this cluster has invited milan itself"},
		{"another nonce", peering("", other), another(answer()),
			"the message answers no open invitation of this cluster"},
		{"none was sent", serviceCIDR, answer(), "the message answers no open invitation of this cluster"},
		{"used up", peering(", publicKey: "+other, other), answer(),
			"Peering milan already has another key of its peer"},
		{"joined by another name", strings.ReplaceAll(client(invitation().Key.Base64()), "milan", "milano"),
			from(invitation()), "the message is from milan, whose gateway is joined already, by Peering milano"},
		{"for another", strings.Replace(peering("", other), "cluster: rome", "cluster: turin", 1), answer(),
			"the message is for rome, and this cluster is turin"},
	} {
		err := cluster(t, "rome", "172.18.0", c.peering).Acceptable(c.message)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestNth(t *testing.T) {
	for cidr, want := range map[string]string{"10.244.0.0/16": "10.244.1.5", "10.0.0.128/25": "10.0.0.255",
		"10.1.2.3/32": "10.1.2.3", "fd00:244::/56": "fd00:244::105", "fd00::/127": "fd00::1", "::/0": "::105"} {
		if got := Nth(netip.MustParsePrefix(cidr), 261).String(); got != want {
			t.Errorf("%s: %s, want %s", cidr, got, want)
		}
	}
}
