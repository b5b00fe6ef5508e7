package gather

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"culvert/integration/need"
)

// unpack returns the files of what Write writes.
func unpack(t testing.TB, a *Archive, names *Pseudonyms) (*Contents, map[string]string) {
	t.Helper()
	var out bytes.Buffer
	need.NoError(t, a.Write(&out, names))
	files := map[string]string{}
	c, err := Read(&out, func(file string, data []byte) error {
		files[file] = string(data)
		return nil
	})
	need.NoError(t, err)
	return c, files
}

// whole returns all that can be read in an archive.
func whole(t testing.TB, a *Archive, names *Pseudonyms) string {
	t.Helper()
	c, files := unpack(t, a, names)
	text, err := json.Marshal(c)
	need.NoError(t, err)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text = fmt.Appendf(text, "\n%s\n%s", name, files[name])
	}
	return string(text)
}

const (
	private = "wBvQ7bmW1pQvBX1xJIVTpRGcFyVDKzYy3AqmIkgkcFg="
	public  = "WFwOK79s8zdMoJCnoOMfUFfObBD+kRrCFL/Y9iuGih4="
	jwt     = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
)

// TestSecretsNeverIn: private keys, tokens and passwords are removed from each kind of file, with
// pseudonyms and without; a public key stays, but not as it is beside pseudonyms.
func TestSecretsNeverIn(t *testing.T) {
	needles := []string{private, jwt, "hunter22", "MIIEvQIBADANBg", "c2VjcmV0LXRva2Vu"}
	text := "time=2026-11-29T10:00:00Z level=warning msg=\"request failed\" error=\"key " + private +
		", authorization: Bearer " + jwt + "\" proxy=http://user:hunter22@proxy.example:3128\n" +
		"password: hunter22\n-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----\n" +
		"private_key=" + private + " token=c2VjcmV0LXRva2Vu\npeer " + public + "\n" +
		"time=2026-11-29T10:00:00Z level=info msg=m publicKey=\"" + public + "\"\n"
	a := &Archive{Missing: []Missing{{nil, "status", "GET with bearer " + jwt + " and " + private}}}
	a.Add("culvert.log", []byte(text), "logs", private)
	a.AddJSON("status.json", map[string]any{"publicKey": public, "privateKey": "hunter22", "name": private, "data": jwt,
		"text": text, "env": []any{map[string]any{"name": "a", "token": "c2VjcmV0LXRva2Vu"}}})
	a.Entries[0].Place = []string{"logs"}
	for _, names := range []*Pseudonyms{nil, withKey([32]byte{})} {
		got := whole(t, a, names)
		for _, needle := range needles {
			if strings.Contains(got, needle) {
				t.Errorf("anonymised %t: %s is in it:\n%s", names != nil, needle, got)
			}
		}
		if strings.Contains(got, public) != (names == nil) || names != nil && strings.Contains(got, public[:8]) {
			t.Errorf("anonymised %t: the public key is in it: %t", names != nil, names != nil)
		}
	}
}

// A world is random names and addresses.
type world struct {
	*rand.Rand
	needles []string
}

const nameLetters = "abcdefghijklmnopqrstuvwxyz0123456789"

// name returns a new name as objects, hosts, users or contexts have it.
func (w *world) name() string {
	word := func() string {
		b := []byte{nameLetters[w.IntN(26)]}
		for range 4 + w.IntN(8) {
			b = append(b, nameLetters[w.IntN(len(nameLetters))])
		}
		return string(b)
	}
	name := word()
	switch w.IntN(6) {
	case 1:
		name += "-" + word()
	case 2:
		name += "." + word() + ".example"
	case 3:
		name += "@" + word()
	case 4:
		name = "ip-10-1-2-3-" + name
	case 5:
		name = strings.ToUpper(name[:1]) + name[1:] + "_" + word()
	}
	w.needles = append(w.needles, name)
	return name
}

func (w *world) address() string {
	a := someAddr(w.Rand)
	w.needles = append(w.needles, a.String())
	switch w.IntN(3) {
	case 0:
		return a.String()
	case 1:
		return netip.AddrPortFrom(a, 51840).String()
	}
	return a.String() + "/32"
}

// TestAnonymised: of random names and addresses in each place where something can stand, none is in
// the archive.
func TestAnonymised(t *testing.T) {
	for seed := range uint64(30) {
		w := &world{Rand: rand.New(rand.NewPCG(seed, 0))}
		a := &Archive{Begun: time.Unix(1e9, 0)}
		context, pod, node, service, host := w.name(), w.name(), w.name(), w.name(), w.name()
		sentence := func() string {
			return fmt.Sprintf("%s (%s) sends to %s, of Service %s; lookup %s: User %q may not, see \"%s\" in %s.",
				node, w.address(), w.address(), service, host, w.name(), pod, context)
		}
		a.AddJSON("status.json", map[string]any{
			"cluster": w.name(), "peer": w.name(), "role": "client", "started": "2026-11-29T10:00:00Z",
			"findings": []any{map[string]any{"level": "warning", "cause": "node-deaf", "of": node, "text": sentence()}},
			"tunnel":   map[string]any{"endpoint": w.address(), "state": "up"},
			"nodes":    []any{map[string]any{"name": node, "underlay": w.address(), "podCIDRs": []any{w.address()}}},
			"origin":   "Service/" + w.name() + "/" + service, "configFile": "/home/" + w.name() + "/gateway.yaml",
			"replica": map[string]any{"holder": w.name(), "pod": pod},
		}, context, w.name(), pod)
		a.AddJSON("objects/pods.json", []any{map[string]any{"kind": "Pod",
			"metadata": map[string]any{"name": pod, "namespace": w.name(),
				"labels": map[string]any{"app": w.name(), w.name(): w.name(), w.name() + "/x": "true"}},
			"spec": map[string]any{"nodeName": node, "serviceAccountName": w.name(),
				"args": []any{"--name=" + w.name()}},
			"status": map[string]any{"podIP": w.address(), "message": sentence(), "hostname": host},
		}}, context)
		a.Add("culvert.log", fmt.Appendf(nil, "time=2026-11-29T10:00:00Z level=info msg=\"gateway running\" peer=%s node=%q\n"+
			"time=2026-11-29T10:00:00Z level=info msg=%q error=%q resource=Service/%s/%s address=%s\n"+
			"{\"level\":\"info\",\"msg\":\"node lost\",\"pod\":%q,\"error\":%q}\n"+
			"Nov 29 10:00:00 %s culvert[7]: time=x level=info msg=m gateway=%s/%s\npanic: %s\n",
			w.name(), w.name(), sentence(), sentence(), w.name(), w.name(), w.address(), w.name(), sentence(), w.name(),
			w.name(), w.name(), sentence()), context, w.name(), pod)
		a.Miss("rules", errors.New(`Get "https://`+host+`:6443/api/v1/namespaces/`+w.name()+`": dial `+w.address()),
			context)

		key := [32]byte{byte(seed), 3}
		got := whole(t, a, withKey(key))
		lower := strings.ToLower(got)
		for _, needle := range w.needles {
			if strings.Contains(lower, strings.ToLower(needle)) {
				t.Errorf("seed %d: %s is in it:\n%s", seed, needle, got)
			}
		}
		for _, word := range []string{"node-deaf", "gateway running", "warning", "sends to", "2026-11-29T10:00:00Z",
			"panic: ", "Service/", "may not", withKey(key).Name(node), withKey(key).Name(host)} {
			if !strings.Contains(got, word) {
				t.Errorf("seed %d: %q is not in it:\n%s", seed, word, got)
			}
		}
		if again := whole(t, a, withKey(key)); again != got {
			t.Errorf("seed %d: the same key makes another archive", seed)
		}
		if t.Failed() {
			return
		}
	}
}

// TestArchive: an archive has the files in a fixed order, and says what it lacks; two places whose
// names become one keep both files. What is no archive, or is cut off, is refused.
func TestArchive(t *testing.T) {
	a := &Archive{Begun: time.Unix(1e9, 0).UTC()}
	a.Add("b.log", []byte("one\n"), "a/x")
	a.Add("b.log", []byte("two\n"), "a_x")
	a.Add("a.json", []byte(`{"n": 12345678901234567890}`), "..")
	a.Miss("events", errors.New("you may not"), "rome", "culvert")
	c, files := unpack(t, a, nil)
	want := map[string]string{"a_x/b.log": "one\n", "a_x/2-b.log": "two\n",
		"_../a.json": "{\n  \"n\": 12345678901234567890\n}\n"}
	if !maps.Equal(files, want) || !slices.IsSorted(c.Files) || len(c.Files) != len(want) || c.Anonymised {
		t.Errorf("%q, contents %+v", files, c)
	}
	if len(c.Missing) != 1 || c.Missing[0].String() != "rome: culvert: events: you may not" {
		t.Errorf("%q", c.Missing)
	}
	var one, two bytes.Buffer
	need.NoError(t, errors.Join(a.Write(&one, nil), a.Write(&two, nil)))
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("the same content gives other bytes")
	}
	nothing := func(string, []byte) error { return nil }
	if _, err := Read(strings.NewReader("PK"), nothing); !errors.Is(err, ErrNoArchive) {
		t.Errorf("of something else: %v", err)
	}
	if _, err := Read(bytes.NewReader(one.Bytes()[:one.Len()/2]), nothing); err == nil {
		t.Error("half of it is read without an error")
	}
}

// asked answers questions with texts.
type asked map[string]string

func (a asked) Open(_ context.Context, question string) (io.ReadCloser, error) {
	if text, ok := a[question]; ok {
		return io.NopCloser(strings.NewReader(text)), nil
	}
	return nil, errors.New("no " + question)
}

// TestAsk: connections are counted by kind without their addresses, lists become whole JSON, and an
// answer that is missing or cut off is named.
func TestAsk(t *testing.T) {
	a := &Archive{}
	const flow = `{"protocol":"tcp","state":"established","from":"n1","to":"tunnel","original":{"source":"10.0.0.9"},"sent":{"bytes":3}}`
	a.AskGateway(t.Context(), asked{"status": `{"cluster":"rome"}`, "rules": "{\"origin\":\"a\"}\n{\"origin\":\"b\"}\n",
		"routes": `{"rule":"x"`, "connections": flow + flow + `{"protocol":"udp"}`}, "here")
	_, files := unpack(t, a, nil)
	if got := files["here/connections.json"]; !strings.Contains(got, `"connections": 3`) ||
		!strings.Contains(got, `"connections": 2`) || !strings.Contains(got, `"sentBytes": 6`) ||
		strings.Contains(got, "10.0.0.9") {
		t.Error(got)
	}
	if got := files["here/rules.json"]; !strings.Contains(got, `"a"`) || !strings.HasPrefix(got, "[") {
		t.Error(got)
	}
	var missing []string
	for i := range a.Missing {
		missing = append(missing, a.Missing[i].String())
	}
	if want := []string{"here: doctor: no doctor", "here: routes: unexpected EOF"}; !slices.Equal(missing, want) {
		t.Errorf("%q, want %q", missing, want)
	}
}

// TestWordsStay: what culvert or Kubernetes calls something has no pseudonym.
func TestWordsStay(t *testing.T) {
	a := &Archive{}
	const text = "network.remote.podCIDRs[0]: RFC 8439, Section 2.8.2, of culvert v1.2.3"
	a.AddJSON("rules.json", []any{map[string]any{"origin": "network/remap", "table": "remap-podcidr", "field": text}})
	const pod = "culvert-romulus-6c5f9-k8q2m"
	a.AddJSON("pods.json", []any{map[string]any{"podsFrom": "Nodes", "topologyKey": "kubernetes.io/hostname",
		"path": "/var/lib/kubernetes.io/x1", "kernelVersion": "6.18.44-fc-v857", "name": pod,
		"nodes":   []any{map[string]any{"name": "up", "state": "up"}},
		"message": "assigned culvert/" + pod + " to nodes"}}, "context", "culvert", pod)
	a.AddJSON("doctor.json", []any{map[string]any{"name": "receive buffer", "found": text}})
	names := withKey([32]byte{})
	_, files := unpack(t, a, names)
	mapped := "culvert-" + names.Name("romulus-6c5f9-k8q2m")
	if strings.Contains(strings.Join(slices.Collect(maps.Values(files)), ""), `"name": "up"`) {
		t.Error("a node called up keeps its name")
	}
	pods := names.Name("context") + "/culvert/" + mapped + "/pods.json"
	for file, words := range map[string][]string{"rules.json": {"network/remap", "remap-podcidr", text},
		"doctor.json": {"receive buffer", text},
		pods: {"Nodes", "up", "kubernetes.io/hostname", "6.18.44-fc-v857", mapped,
			"assigned culvert/" + mapped + " to nodes"},
	} {
		for _, word := range words {
			if !strings.Contains(files[file], `"`+word+`"`) {
				t.Errorf("%s has no %q: %s", file, word, files[file])
			}
		}
	}
}
