package peering

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"culvert/gateway/wgkey"
	"culvert/kube/objects"
)

// Key returns the gateway's WireGuard key from its Secret. An empty Secret gets a new key.
func Key(ctx context.Context, client dynamic.Interface, namespace, name string) (wgkey.Key, error) {
	secrets := client.Resource(objects.Secrets).Namespace(namespace)
	of := fmt.Sprintf("Secret %s/%s", namespace, name)
	for {
		u, err := secrets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return wgkey.Key{}, fmt.Errorf("%s: %w; culvert kube template --peering prints it", of, err)
		}
		text, found, err := unstructured.NestedString(u.Object, "data", keyField)
		if err != nil {
			return wgkey.Key{}, fmt.Errorf("%s: data: %w", of, err)
		}
		if found && text != "" {
			var raw []byte
			if json.Unmarshal([]byte(`"`+text+`"`), &raw) != nil {
				return wgkey.Key{}, fmt.Errorf("%s: data.%s: not base64", of, keyField)
			}
			key, err := wgkey.ParseStored(raw)
			if err != nil {
				return wgkey.Key{}, fmt.Errorf("%s: data.%s: %w; empty it, and the gateway makes a new one", of,
					keyField, err)
			}
			if public := key.Public().Base64(); u.GetAnnotations()[KeyAnnotation] != public {
				annotate(u, public)
				if _, err := secrets.Update(ctx, u, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
					continue
				} // otherwise nobody may change this Secret
			}
			return key, nil
		}
		key := wgkey.NewPrivate()
		annotate(u, key.Public().Base64())
		encoded, err := json.Marshal([]byte(key.Base64()))
		if err != nil {
			return wgkey.Key{}, err
		}
		u.Object["data"] = map[string]any{keyField: strings.Trim(string(encoded), `"`)}
		switch _, err := secrets.Update(ctx, u, metav1.UpdateOptions{}); {
		case err == nil:
			return key, nil
		case !apierrors.IsConflict(err):
			return wgkey.Key{}, fmt.Errorf("%s: %w", of, err)
		}
	}
}

// keyField is the field of the Secret.
const keyField = "privateKey"

// KeyAnnotation is the annotation of the Secret with the public key, for those who must not see the
// private one.
const KeyAnnotation = Group + "/public-key"

func annotate(u *unstructured.Unstructured, public string) {
	all := maps.Clone(u.GetAnnotations())
	if all == nil {
		all = map[string]string{}
	}
	all[KeyAnnotation] = public
	u.SetAnnotations(all)
}
