// A test of an operator as authors write it with controller-runtime's envtest. It knows nothing of what is in
// KUBEBUILDER_ASSETS: it passes on kube-apiserver and etcd, and on the assets of ferrokube. See README.md.
package operator

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

var siteKind = schema.GroupVersionKind{Group: "web.example.com", Version: "v1", Kind: "Site"}

const finalizer = "web.example.com/cleanup"

func siteDefinition() *apiextensionsv1.CustomResourceDefinition {
	one := int64(1)
	object := func(properties map[string]apiextensionsv1.JSONSchemaProps, required ...string) apiextensionsv1.JSONSchemaProps {
		return apiextensionsv1.JSONSchemaProps{Type: "object", Properties: properties, Required: required}
	}
	text := apiextensionsv1.JSONSchemaProps{Type: "string", MinLength: &one}
	schema := object(map[string]apiextensionsv1.JSONSchemaProps{
		"spec": {
			Type: "object",
			Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"host":     text,
				"replicas": {Type: "integer", Default: &apiextensionsv1.JSON{Raw: []byte("2")}},
			},
			Required: []string{"host"},
			XValidations: apiextensionsv1.ValidationRules{
				{Rule: "self.host == oldSelf.host", Message: "the host cannot change"},
			},
		},
		"status": object(map[string]apiextensionsv1.JSONSchemaProps{
			"url":                {Type: "string"},
			"observedGeneration": {Type: "integer"},
		}),
	})
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "sites.web.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: siteKind.Group,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "sites", Singular: "site", Kind: "Site", ListKind: "SiteList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &schema},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

func newSite(namespace, name string) *unstructured.Unstructured {
	site := &unstructured.Unstructured{}
	site.SetGroupVersionKind(siteKind)
	site.SetNamespace(namespace)
	site.SetName(name)
	return site
}

// The operator: a Deployment and a ConfigMap for each Site, and its URL in the status.
type reconciler struct{ client.Client }

func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	site := newSite(request.Namespace, request.Name)
	if err := r.Get(ctx, request.NamespacedName, site); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !site.GetDeletionTimestamp().IsZero() {
		if controllerutil.RemoveFinalizer(site, finalizer) {
			return reconcile.Result{}, r.Update(ctx, site)
		}
		return reconcile.Result{}, nil
	}
	if controllerutil.AddFinalizer(site, finalizer) {
		return reconcile.Result{}, r.Update(ctx, site)
	}
	host, _, _ := unstructured.NestedString(site.Object, "spec", "host")
	replicas, _, _ := unstructured.NestedInt64(site.Object, "spec", "replicas")
	page := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: site.GetNamespace(), Name: site.GetName()}}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, page, func() error {
		page.Data = map[string]string{"host": host}
		return controllerutil.SetControllerReference(site, page, r.Scheme())
	}); err != nil {
		return reconcile.Result{}, err
	}
	count := int32(replicas)
	labels := map[string]string{"site": site.GetName()}
	server := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: site.GetNamespace(), Name: site.GetName()}}
	if _, err := controllerutil.CreateOrPatch(ctx, r.Client, server, func() error {
		server.Spec.Replicas = &count
		server.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		server.Spec.Template.Labels = labels
		server.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web", Image: "nginx"}}
		return controllerutil.SetControllerReference(site, server, r.Scheme())
	}); err != nil {
		return reconcile.Result{}, err
	}
	status := map[string]any{"url": "https://" + host, "observedGeneration": site.GetGeneration()}
	if err := unstructured.SetNestedMap(site.Object, status, "status"); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.Status().Update(ctx, site)
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOperator(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	environment := &envtest.Environment{CRDs: []*apiextensionsv1.CustomResourceDefinition{siteDefinition()}, ErrorIfCRDPathMissing: true}
	started := time.Now()
	config, err := environment.Start()
	must(t, err)
	fmt.Fprintf(os.Stderr, "environment started in %v, with %s\n", time.Since(started).Round(time.Millisecond), os.Getenv("KUBEBUILDER_ASSETS"))
	defer func() { must(t, environment.Stop()) }()

	mgr, err := ctrl.NewManager(config, manager.Options{
		Scheme:                  scheme.Scheme,
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		LeaderElection:          true,
		LeaderElectionID:        "operator",
		LeaderElectionNamespace: "default",
	})
	must(t, err)
	site := newSite("", "")
	must(t, ctrl.NewControllerManagedBy(mgr).For(site).Owns(&appsv1.Deployment{}).Owns(&corev1.ConfigMap{}).Named("site").Complete(&reconciler{mgr.GetClient()}))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		must(t, <-ended)
	}()

	api, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	must(t, err)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	must(t, api.Create(ctx, namespace))
	blue := newSite(namespace.Name, "blue")
	blue.Object["spec"] = map[string]any{"host": "blue.example.com"}
	must(t, api.Create(ctx, blue))
	key := client.ObjectKeyFromObject(blue)
	eventually(t, "the status", func() error {
		must(t, api.Get(ctx, key, blue))
		if url, _, _ := unstructured.NestedString(blue.Object, "status", "url"); url != "https://blue.example.com" {
			return fmt.Errorf("status %v", blue.Object["status"])
		}
		return nil
	})
	var server appsv1.Deployment
	must(t, api.Get(ctx, key, &server))
	// Defaults of the definition, and of the kind.
	if *server.Spec.Replicas != 2 || server.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		t.Fatalf("deployment %+v", server.Spec)
	}
	if !metav1.IsControlledBy(&server, blue) {
		t.Fatal("the deployment has no owner")
	}
	// What others change is put back.
	page := &corev1.ConfigMap{}
	must(t, api.Get(ctx, key, page))
	must(t, api.Patch(ctx, page, client.RawPatch("application/merge-patch+json", []byte(`{"data":{"host":"red"}}`))))
	eventually(t, "the page is put back", func() error {
		must(t, api.Get(ctx, key, page))
		if page.Data["host"] != "blue.example.com" {
			return fmt.Errorf("data %v", page.Data)
		}
		return nil
	})
	// Rules of the definition.
	changed := blue.DeepCopy()
	must(t, unstructured.SetNestedField(changed.Object, "red.example.com", "spec", "host"))
	if err := api.Update(ctx, changed); !apierrors.IsInvalid(err) {
		t.Fatalf("a host that changes: %v", err)
	}
	without := newSite(namespace.Name, "without")
	without.Object["spec"] = map[string]any{}
	if err := api.Create(ctx, without); !apierrors.IsInvalid(err) {
		t.Fatalf("a site without a host: %v", err)
	}
	// A stale write conflicts; server-side apply does not.
	stale := blue.DeepCopy()
	stale.SetResourceVersion("1")
	if err := api.Update(ctx, stale); !apierrors.IsConflict(err) {
		t.Fatalf("a stale write: %v", err)
	}
	applied := newSite(namespace.Name, "blue")
	applied.Object["spec"] = map[string]any{"host": "blue.example.com", "replicas": int64(3)}
	must(t, api.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("test"), client.ForceOwnership))
	eventually(t, "three replicas", func() error {
		must(t, api.Get(ctx, key, &server))
		if *server.Spec.Replicas != 3 {
			return fmt.Errorf("%d replicas", *server.Spec.Replicas)
		}
		return nil
	})
	withUser(t, ctx, environment, api, namespace.Name)
	// The finalizer lets it go.
	must(t, api.Delete(ctx, blue))
	eventually(t, "the site is gone", func() error {
		if err := api.Get(ctx, key, blue); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there: %v", err)
		}
		return nil
	})
}

// A user of envtest has the rights that RBAC gives it.
func withUser(t *testing.T, ctx context.Context, environment *envtest.Environment, api client.Client, namespace string) {
	user, err := environment.AddUser(envtest.User{Name: "alice", Groups: []string{"editors"}}, nil)
	must(t, err)
	alice, err := client.New(user.Config(), client.Options{Scheme: scheme.Scheme})
	must(t, err)
	maps := &corev1.ConfigMapList{}
	if err := alice.List(ctx, maps, client.InNamespace(namespace)); !apierrors.IsForbidden(err) {
		t.Fatalf("a list without rights: %v", err)
	}
	must(t, api.Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
	}))
	must(t, api.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "editors"}},
	}))
	eventually(t, "alice may list", func() error { return alice.List(ctx, maps, client.InNamespace(namespace)) })
	if len(maps.Items) == 0 {
		t.Fatal("alice sees nothing")
	}
	response, err := http.DefaultClient.Get("http://" + environment.ControlPlane.Etcd.URL.Host + "/health")
	must(t, err)
	must(t, response.Body.Close())
}
