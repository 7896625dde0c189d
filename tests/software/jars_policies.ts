// Policies and an operator on Pepr: jars are defaulted, checked, and each gets a label on paper, a config map.
import { a, Capability, K8s, kind, PeprModule, RegisterKind } from "pepr";
import settings from "./package.json";

class Jar extends a.GenericKind {
  declare spec: { flavor?: string; lid?: string };
}
RegisterKind(Jar, { group: "software.example", version: "v1", kind: "Jar", plural: "jars" });

const jars = new Capability({ name: "jars", description: "jars", namespaces: ["default"] });

jars.When(Jar)
  .IsCreatedOrUpdated()
  .Mutate(request => {
    request.Raw.spec.lid ??= "cork";
    request.SetLabel("pantry", "yes");
  })
  .Validate(request =>
    request.Raw.spec.flavor === "mud" ? request.Deny("mud is no flavor", 422) : request.Approve(),
  )
  .Watch(async jar => {
    await K8s(kind.ConfigMap).Apply({
      metadata: { name: `label-of-${jar.metadata?.name}`, namespace: jar.metadata?.namespace },
      data: { flavor: jar.spec.flavor ?? "none", lid: jar.spec.lid ?? "none" },
    });
  });

jars.When(Jar).IsDeleted().Validate(request =>
  (request.OldResource as Jar | undefined)?.spec.lid === "steel" ? request.Deny("steel stays shut") : request.Approve(),
);

jars.When(a.ConfigMap)
  .IsCreated()
  .WithName("sealed")
  .Validate(request => (request.HasAnnotation("seal") ? request.Approve(["sealed twice"]) : request.Deny("no seal")));

new PeprModule(settings, [jars]);
