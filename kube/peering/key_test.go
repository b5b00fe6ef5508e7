package peering

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"

	"culvert/gateway/wgkey"
	"culvert/integration/need"
	"culvert/kube/objects"
)

// secretWith is the Secret of a gateway with fields of data.
func secretWith(t *testing.T, data map[string]string) *unstructured.Unstructured {
	u := object(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: culvert-milan, namespace: culvert}")
	for field, text := range data {
		need.NoError(t, unstructured.SetNestedField(u.Object, base64.StdEncoding.EncodeToString([]byte(text)), "data",
			field))
	}
	return u
}

// TestReadKeys: a gateway makes a private key where there is none, and leaves the pre-shared key
// alone. Of a key that is none, the error names the field and the remedy, and does not show it.
func TestReadKeys(t *testing.T) {
	preshared := wgkey.NewPrivate()
	read := func(data map[string]string) (Keys, *unstructured.Unstructured, error) {
		client := fake.NewSimpleDynamicClient(runtime.NewScheme(), secretWith(t, data))
		k, err := ReadKeys(context.Background(), client, "culvert", SecretName("milan"))
		u, _ := client.Resource(objects.Secrets).Namespace("culvert").Get(context.Background(), "culvert-milan",
			metav1.GetOptions{})
		return k, u, err
	}
	made, u, err := read(map[string]string{presharedField: preshared.Base64() + "\n"})
	need.NoError(t, err)
	if made.Private == (wgkey.Key{}) || made.Preshared != preshared ||
		u.GetAnnotations()[KeyAnnotation] != made.Private.Public().Base64() {
		t.Errorf("annotations %v", u.GetAnnotations())
	}
	for field, want := range map[string]wgkey.Key{privateField: made.Private, presharedField: preshared} {
		if got, err := keyIn(u, field); err != nil || got != want {
			t.Errorf("%s of the Secret is another one (%v)", field, err)
		}
	}
	if k, _, err := read(map[string]string{privateField: made.Private.Base64()}); err != nil ||
		k != (Keys{Private: made.Private}) {
		t.Errorf("without a pre-shared key: %v", err)
	}
	const secret = "c2hvcnQtc2VjcmV0"
	for field, want := range map[string]string{
		privateField:   "empty it, and the gateway makes a new one",
		presharedField: "write what wg genpsk prints, or remove it",
	} {
		_, _, err := read(map[string]string{field: secret})
		if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf(
			"Secret culvert/culvert-milan: data.%s: not a WireGuard key; ", field)) ||
			!strings.HasSuffix(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want %s", field, err, want)
		}
	}
}

// TestPresharedKeyChanges: the gateway follows the pre-shared key in its Secret. In place of one
// that is none the one before stays in use, and an Event says so; it also does when the Secret is
// deleted.
func TestPresharedKeyChanges(t *testing.T) {
	inCluster(t, func(t *testing.T, c *cluster) {
		has := func(what string, want wgkey.Key, events int) {
			t.Helper()
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got := c.config.Load().WireGuard.PresharedKey; got != want {
				t.Errorf("%s: the gateway has another key", what)
			}
			if _, n := c.written(); n != events {
				t.Errorf("%s: %d Events, want %d", what, n, events)
			}
		}
		c.written()
		one, other := wgkey.NewPrivate(), wgkey.NewPrivate()
		has("no Secret", wgkey.Key{}, 0)
		need.NoError(t, c.Tracker().Create(objects.Secrets,
			secretWith(t, map[string]string{presharedField: one.Base64()}), "culvert"))
		has("a key", one, 0)
		c.update(kindSecret, secretWith(t, map[string]string{presharedField: "short"}))
		has("a short one", one, 1)
		c.update(kindSecret, secretWith(t, map[string]string{presharedField: other.Base64()}))
		has("another one", other, 0)
		peers := c.config.Load().WireGuard.PeerPublicKey.Base64()
		c.update(kindSecret, secretWith(t, map[string]string{presharedField: peers}))
		has("the peer's public key", other, 1)
		c.update(kindSecret, secretWith(t, map[string]string{presharedField: other.Base64()}))
		has("the one before again", other, 0)
		need.NoError(t, c.Tracker().Delete(objects.Secrets, "culvert", "culvert-milan"))
		has("no Secret any more", other, 0)
		need.NoError(t, c.Tracker().Create(objects.Secrets, secretWith(t, nil), "culvert"))
		has("none", wgkey.Key{}, 0)
	})
}
