//! Skills, as a caller lists, reads, creates, changes, deletes and exports them.

use contract::SkillName;
use contract::skills::{self, CreateSkill, SkillDefinition, SkillList, UpdateSkill};

use super::life::blocking;
use super::{Agent, AgentError};
use crate::brain::{CustomSkill, NotCreated};
use crate::skills::{ExportError, Skill, Skills, archive};

impl Agent {
    /// The skills of the platform and the user's own, by their names in order.
    pub async fn skills(&self) -> Result<SkillList, AgentError> {
        let skills = self.skills_at_hand();
        Ok(SkillList { skills: self.read(move |_| skills.all()).await? })
    }

    /// A whole skill.
    pub async fn skill(&self, name: &str) -> Result<skills::Skill, AgentError> {
        let skill = self.find_skill(name).await?;
        let now = self.means.clock.now();
        let whole = blocking(move || skill.whole(now)).await.ok_or(AgentError::Stopping)?;
        whole.ok_or(AgentError::UnknownSkill)
    }

    /// Creates a skill of the user's own.
    pub async fn create_skill(&self, create: CreateSkill) -> Result<skills::Skill, AgentError> {
        let CreateSkill { name, description, category, prompt, capabilities, scripts } = create;
        let definition = SkillDefinition { description, category, prompt, capabilities, scripts }
            .checked()
            .map_err(|error| AgentError::Invalid(error.to_string()))?;
        if self.means.kits.current().skills.iter().any(|skill| skill.name == name.as_str()) {
            return Err(AgentError::SkillExists(name));
        }
        let created_at = self.means.clock.now();
        let skill = CustomSkill { name, definition, created_at, updated_at: created_at };
        let created = skill.clone();
        match self.brain.write(move |rows| rows.create_skill(&created)).await? {
            Ok(()) => self.shown(skill),
            Err(NotCreated::Taken) => Err(AgentError::SkillExists(skill.name)),
            Err(reason @ NotCreated::TooMany) => Err(AgentError::Invalid(reason.to_string())),
        }
    }

    /// Changes a skill of the user's own.
    pub async fn update_skill(&self, name: &str, update: UpdateSkill) -> Result<skills::Skill, AgentError> {
        self.own_skill(name).await?;
        if update.name.as_ref().is_some_and(|other| other != name) {
            let message = "`name`: must be the name that the path has: a skill cannot be renamed, only deleted and \
                           created anew";
            return Err(AgentError::Invalid(message.into()));
        }
        let (name, at) = (name.to_owned(), self.means.clock.now());
        let updated = self.brain.write(move |rows| rows.update_skill(&name, &update, at)).await?;
        let updated = updated.ok_or(AgentError::UnknownSkill)?;
        let skill = updated.map_err(|error| AgentError::Invalid(error.to_string()))?;
        self.retire_folder(skill.name.clone()).await;
        self.shown(skill)
    }

    /// Deletes a skill of the user's own.
    pub async fn delete_skill(&self, name: &str) -> Result<(), AgentError> {
        let CustomSkill { name, .. } = self.own_skill(name).await?;
        let gone = name.clone();
        if !self.erasing(None, move |rows| rows.delete_skill(gone.as_str())).await? {
            return Err(AgentError::UnknownSkill);
        }
        self.retire_folder(name).await;
        Ok(())
    }

    /// A tar archive of a skill's folder.
    pub async fn export_skill(&self, name: &str) -> Result<Vec<u8>, AgentError> {
        let skill = self.find_skill(name).await?;
        let archived = blocking(move || archive(&skill)).await.ok_or(AgentError::Stopping)?;
        archived.map_err(|error| match error {
            ExportError::TooLarge => AgentError::Invalid(error.to_string()),
            ExportError::Io(error) => AgentError::Unreadable(format!("a file of a skill: {error}")),
        })
    }

    /// The skills of the catalog as it is now, and the user's own.
    pub(super) fn skills_at_hand(&self) -> Skills {
        Skills::new(self.means.kits.current().skills.clone(), self.brain.clone())
    }

    /// The skill called `name`.
    pub(super) async fn find_skill(&self, name: &str) -> Result<Skill, AgentError> {
        let (skills, name) = (self.skills_at_hand(), name.to_owned());
        self.read(move |_| skills.find(&name)).await?.ok_or(AgentError::UnknownSkill)
    }

    /// The skill called `name`, which must be the user's own.
    async fn own_skill(&self, name: &str) -> Result<CustomSkill, AgentError> {
        match self.find_skill(name).await? {
            Skill::Custom(skill) => Ok(*skill),
            Skill::Platform(_) => Err(AgentError::PlatformSkill),
        }
    }

    /// The skill called `name` is not what it was: no program is to find the folder that it had.
    async fn retire_folder(&self, name: SkillName) {
        let means = self.means.clone();
        blocking(move || means.shelf.retire(name.as_str())).await;
    }

    fn shown(&self, skill: CustomSkill) -> Result<skills::Skill, AgentError> {
        Skill::Custom(Box::new(skill)).whole(self.means.clock.now()).ok_or(AgentError::UnknownSkill)
    }
}
